"""Container engines of a machine, the modes in which each can run, and what ranks would share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from hpcenv.base.known import Fact, Known, Unknown, map_fact
from hpcenv.base.version import Version
from hpcenv.site import captured
from hpcenv.site.host import Host
from hpcenv.site.model import HostEngine

_COMMANDS = ("apptainer", "singularity", "podman", "docker")
_SIF = ("apptainer", "singularity")
_STARTERS = (
    "libexec/apptainer/bin/starter-suid",
    "libexec/singularity/bin/starter-suid",
    "lib/apptainer/bin/starter-suid",
    "lib/singularity/bin/starter-suid",
)
_ASK = "as the user who will run jobs: apptainer --version; podman --version; docker --version"


def engines(host: Host, pool: Executor, more: Sequence[Path] = ()) -> Fact[tuple[HostEngine, ...]]:
    """Find the container engines on PATH, and in `more` folders after it."""
    found = dict.fromkeys(_found(host, more))
    said = pool.map(
        lambda path: host.ran([path, "--version"], captured.engine_version, _ASK), found
    )
    described: dict[str, HostEngine] = {}
    for path, fact in zip(found, said, strict=True):
        name = fact.value.name if isinstance(fact, Known) else Path(path).name
        version: Fact[Version] = (
            Known(fact.value.version, fact.how, fact.where) if isinstance(fact, Known) else fact
        )
        # Podman's stand-in for docker says "podman": one engine under two names.
        real = str(Path(path).resolve()) if name in _SIF else name
        described.setdefault(real, HostEngine(name, version, path, _modes(host, name, path)))
    folders = [*host.path, *map(str, more)]
    where = f"{', '.join(_COMMANDS)} in {len(folders)} folders of PATH and hpcenv's own"
    return Known(tuple(described.values()), "ran", where)


def privileged(found: Fact[tuple[HostEngine, ...]]) -> Fact[bool]:
    """Tell whether the containers of a node's ranks share the host's user namespace.

    Parameters
    ----------
    found : Fact[tuple of HostEngine]
        The engines; the first that runs SIF images counts, else the first whose modes are known.
    """
    if isinstance(found, Unknown):
        return Unknown(found.why, found.ask)
    if not found.value:
        return Unknown("there is no container engine", "hpcenv engine install, then detect again")
    engine = min(found.value, key=lambda e: (e.name not in _SIF, isinstance(e.modes, Unknown)))
    if isinstance(engine.modes, Unknown):
        return Unknown(engine.modes.why, engine.modes.ask)
    modes = engine.modes.value
    if "root" in modes:
        where = f"{engine.path} run by root; an ordinary user's may differ"
        return Known(True, engine.modes.how, where)
    if "suid" in modes:
        return Known(True, engine.modes.how, f"{engine.path}: {engine.modes.where}")
    if "daemon" in modes:
        return Known(True, engine.modes.how, f"{engine.path}: a daemon that root runs")
    if "userns" in modes:
        return Known(False, engine.modes.how, f"{engine.path}: {engine.modes.where}")
    return Unknown(f"{engine.path} can run in no mode known here", engine.modes.where)


def _found(host: Host, more: Sequence[Path]) -> Iterator[str]:
    for command in _COMMANDS:
        path = host.program(command)
        if path is not None:
            yield path
    for folder in more:
        for command in _COMMANDS:
            if os.access(folder / command, os.X_OK):
                yield str(folder / command)


def _modes(host: Host, name: str, path: str) -> Fact[frozenset[str]]:
    if name == "docker":
        return _docker_modes(host, path)
    modes = set()
    why = []
    if os.geteuid() == 0:
        modes.add("root")
        why.append("run by root")
    starter = _suid_starter(path) if name in _SIF else None
    if starter is not None:
        modes.add("suid")
        why.append(f"{starter} is suid root")
    obstacle = _no_user_namespaces(host)
    if obstacle is None:
        modes.add("userns")
        why.append("unprivileged user namespaces are allowed")
    else:
        why.append(obstacle)
    return Known(frozenset(modes), "read", "; ".join(why))


def _suid_starter(path: str) -> Path | None:
    prefix = Path(path).resolve().parent.parent
    for candidate in (*_STARTERS, "lib/x86_64-linux-gnu/singularity/bin/starter-suid"):
        starter = prefix / candidate
        try:
            status = starter.stat()
        except OSError:
            continue
        if status.st_uid == 0 and status.st_mode & 0o4000:
            return starter
    return None


def _no_user_namespaces(host: Host) -> str | None:
    """Return what forbids an ordinary user a user namespace, None where nothing does."""
    for file, wrong in (
        ("/proc/sys/user/max_user_namespaces", "0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ):
        text = host.text(file)
        if text is not None and text.strip() == wrong:
            return f"{file} is {wrong}: no unprivileged user namespaces"
    return None


def _docker_modes(host: Host, path: str) -> Fact[frozenset[str]]:
    info = host.ran(
        [path, "info", "--format", "{{.SecurityOptions}}"],
        lambda text: text if text.startswith("[name=") else None,
        "with its daemon running: docker info",
    )
    mode = map_fact(info, lambda text: "userns" if "name=rootless" in text else "daemon")
    return map_fact(mode, lambda name: frozenset({name}))
