"""Describe this machine: every fact with how it was learnt, or with what would tell."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcenv.base.known import Known, map_fact
from hpcenv.base.together import together
from hpcenv.base.version import Version
from hpcenv.site import captured, containers, hardware, mpis, scheduler
from hpcenv.site.host import Host
from hpcenv.site.model import SiteProfile
from hpcenv.sources.configured import detect_mirrors


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
    probes: dict[str, Callable[[], Any]] = {
        "slurm": lambda: scheduler.slurm(host),
        "gpus_elsewhere": lambda: scheduler.scheduled_gpus(host),
        "mpis": lambda: mpis.find_mpis(host),
        "engines": lambda: containers.engines(host, engines),
        "mirrors": lambda: detect_mirrors(host.env, root=root),
        "libc": lambda: host.ran(["ldd", "--version"], captured.libc_version, "ldd --version"),
    }
    found = dict(zip(probes, together(*probes.values()), strict=True))
    cpu = host.read("/proc/cpuinfo", captured.cpuinfo, "cat /proc/cpuinfo")
    return SiteProfile(
        schema=1,
        name=name,
        arch=Known(platform.machine(), "ran", "uname -m"),
        cpu_features=map_fact(cpu, lambda c: c.features),
        cpus=map_fact(cpu, lambda c: c.count),
        os=host.read("/etc/os-release", captured.os_release, "cat /etc/os-release"),
        kernel=Known(Version.parse(platform.release()), "ran", "uname -r"),
        libc=found["libc"],
        mpis=found["mpis"],
        slurm=found["slurm"],
        driver=hardware.driver(host, found["gpus_elsewhere"]),
        gpus=hardware.gpus(host, found["gpus_elsewhere"]),
        fabrics=hardware.fabrics(host),
        engines=found["engines"],
        privileged=containers.privileged(found["engines"]),
        mirrors=found["mirrors"],
    )
