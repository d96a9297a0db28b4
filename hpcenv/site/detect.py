"""Describe this machine: every fact with how it was learnt, or with what would tell."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from hpcenv.base.known import Fact, Known, map_fact
from hpcenv.base.version import Version
from hpcenv.site import captured, containers, hardware, mpis, scheduler
from hpcenv.site.host import Host
from hpcenv.site.model import SiteProfile
from hpcenv.sources.configured import detect_mirrors

T = TypeVar("T")
_WORKERS = 8


def detect(
    name: str,
    *,
    engines: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> SiteProfile:
    """Describe the machine that this runs on.

    Nothing that is missing is an error: the fact is then unknown, with what was looked for.

    Parameters
    ----------
    name : str
        What to call the site.
    engines : sequence of Path
        Folders that are searched for container engines after PATH.
    env : mapping, optional
        The environment to look from; this process's own when left out.
    root : Path
        The machine's root folder.
    """
    host = Host(root, dict(os.environ if env is None else env))
    # Two pools: a probe of the first waits for programs that it runs in the second.
    with ThreadPoolExecutor(_WORKERS) as probes, ThreadPoolExecutor(_WORKERS) as programs:

        def start(probe: Callable[..., T], *args: object) -> Callable[[], T]:
            return probes.submit(probe, *args).result

        slurm = start(scheduler.slurm, host)
        gpus_elsewhere = start(scheduler.scheduled_gpus, host)
        found_mpis = start(mpis.find_mpis, host, programs)
        found_engines = start(containers.engines, host, programs, engines)
        mirrors = start(lambda: detect_mirrors(host.env, root=root))
        libc = start(lambda: host.ran(["ldd", "--version"], captured.libc_version, "ldd --version"))
        cpu = host.read("/proc/cpuinfo", captured.cpuinfo, "cat /proc/cpuinfo")
        kernel: Fact[Version] = Known(Version.parse(platform.release()), "ran", "uname -r")
        return SiteProfile(
            schema=1,
            name=name,
            arch=Known(platform.machine(), "ran", "uname -m"),
            cpu_features=map_fact(cpu, lambda c: c.features),
            cpus=map_fact(cpu, lambda c: c.count),
            os=host.read("/etc/os-release", captured.os_release, "cat /etc/os-release"),
            kernel=kernel,
            libc=libc(),
            mpis=found_mpis(),
            slurm=slurm(),
            driver=hardware.driver(host, gpus_elsewhere()),
            gpus=hardware.gpus(host, gpus_elsewhere()),
            fabrics=hardware.fabrics(host),
            engines=found_engines(),
            privileged=containers.privileged(found_engines()),
            mirrors=mirrors(),
        )
