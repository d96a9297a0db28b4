"""Container engines of a machine, the modes in which each can run, and what ranks would share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from hpcenv.base.errors import Outside
from hpcenv.base.known import Fact, Known, Unknown, map_fact
from hpcenv.base.together import together
from hpcenv.engines import userns
from hpcenv.engines.apptainer import Apptainer
from hpcenv.site import captured
from hpcenv.site.host import Host
from hpcenv.site.model import HostEngine

_COMMANDS = ("apptainer", "singularity", "podman", "docker")
_SIF = ("apptainer", "singularity")
_ASK = "as the user who will run jobs: apptainer --version; podman --version; docker --version"


def engines(host: Host, more: Sequence[Path] = ()) -> Fact[tuple[HostEngine, ...]]:
    """Find the container engines on PATH, and in `more` folders after it."""
    found = dict.fromkeys(_found(host, more))
    said = together(
        *(partial(host.ran, [path, "--version"], captured.engine_version, _ASK) for path in found)
    )
    described: dict[str, HostEngine] = {}
    for path, fact in zip(found, said, strict=True):
        name = fact.value.name if isinstance(fact, Known) else Path(path).name
        version = map_fact(fact, lambda engine: engine.version)
        # Podman's stand-in for docker says "podman": one engine under two names.
        real = str(Path(path).resolve()) if name in _SIF else name
        # What does not even say its version is not tried.
        modes: Fact[frozenset[str]] = (
            fact if isinstance(fact, Unknown) else _modes(host, name, path)
        )
        described.setdefault(real, HostEngine(name, version, path, modes))
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
    modes, how, where = engine.modes.value, engine.modes.how, engine.modes.where
    if "root" in modes:
        return Known(True, how, f"{engine.path} run by root; an ordinary user's may differ")
    if "setuid" in modes:
        return Known(True, how, f"{engine.path} has a starter that is suid root ({where})")
    if "daemon" in modes:
        return Known(True, how, f"{engine.path}: a daemon that root runs ({where})")
    if "rootless" in modes:
        return Known(False, how, f"{engine.path} by user namespaces alone ({where})")
    return Unknown(f"{engine.path} can run in no mode: {where}", "hpcenv engine list")


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
    try:
        return _tried_modes(host, name, path)
    except Outside as failure:
        return Unknown(failure.says, _ASK)


def _tried_modes(host: Host, name: str, path: str) -> Fact[frozenset[str]]:
    if name == "docker":
        return _docker_modes(host, path)
    if name in _SIF:
        modes = Apptainer(Path(path), name).modes()
        tried = f"{path} buildcfg; unshare --user"
    elif os.geteuid() == 0:
        modes, tried = frozenset({"root"}), "run by root"
    else:
        modes = frozenset({"rootless"} if userns.no_namespaces() is None else ())
        tried = "unshare --user"
    if not modes and (forbidden := userns.no_namespaces()):
        return Known(modes, "ran", f"{tried}: {forbidden.says}")
    return Known(modes, "ran", tried)


def _docker_modes(host: Host, path: str) -> Fact[frozenset[str]]:
    info = host.ran(
        [path, "info", "--format", "{{.SecurityOptions}}"],
        lambda text: text if text.startswith("[name=") else None,
        "with its daemon running: docker info",
    )
    mode = map_fact(info, lambda text: "rootless" if "name=rootless" in text else "daemon")
    return map_fact(mode, lambda name: frozenset({name}))
