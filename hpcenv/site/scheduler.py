"""Slurm as seen from this node: its version, what its srun offers, and which PMIx it loads."""

from __future__ import annotations

import re
from pathlib import Path

from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.site import captured
from hpcenv.site.host import Host
from hpcenv.site.libraries import spoken_versions
from hpcenv.site.model import Slurm

_ASK = "where Slurm works: srun --version; srun --mpi=list"
# Slurm's commands try a controller that does not answer for ten seconds; one that lives answers.
_CONTROLLER_S = 3.0
_PLUGINS = (
    "/usr/lib/*-linux-gnu/slurm*",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/local/lib/slurm",
    "/opt/slurm/lib*/slurm",
    "/opt/slurm/*/lib*/slurm",
)


def slurm(host: Host) -> Fact[Slurm | None]:
    """Learn about Slurm; a known None where there is no srun."""
    program = host.program("srun")
    if program is None:
        return Known(None, "read", f"no srun in PATH's {len(host.path)} folders")
    version = host.ran(["srun", "--version"], captured.slurm_version, _ASK)
    types = host.ran(["srun", "--mpi=list"], lambda t: captured.slurm_mpi_types(t) or None, _ASK)
    if isinstance(version, Unknown) and isinstance(types, Unknown):
        return Unknown(f"{program} is there, but {types.why}", _ASK)
    return Known(Slurm(version, types, _pmix(host, types)), "ran", program)


def scheduled_gpus(host: Host) -> str | None:
    """Return what Slurm calls the GPUs of its nodes, None where it knows of none."""
    if host.program("sinfo") is None:
        return None
    argv = ["sinfo", "-h", "-o", "%G"]
    fact = host.ran(argv, _gpu_kinds, "sinfo -o %G", deadline=_CONTROLLER_S)
    return fact.value if isinstance(fact, Known) else None


def _gpu_kinds(text: str) -> str | None:
    kinds = dict.fromkeys(re.findall(r"\bgpu:[A-Za-z0-9_.:\-]+", text))
    return ", ".join(kinds) or None


def _pmix(host: Host, types: Fact[frozenset[str]]) -> Fact[Version]:
    """Ask the libpmix that ``srun --mpi=pmix`` would load."""
    ask = "the version of the libpmix that Slurm's mpi_pmix plug-in loads: pmix_info"
    if isinstance(types, Unknown):
        return Unknown(types.why, ask)
    if not any(name.startswith("pmix") for name in types.value):
        return Unknown("srun --mpi=list offers no pmix", "nothing: this Slurm has no PMIx")
    plugins = [p for where in _PLUGINS for p in host.root.glob(f"{where.strip('/')}/mpi_pmix.so")]
    if not plugins:
        return Unknown(f"no mpi_pmix.so in {', '.join(_PLUGINS)}", ask)
    library = _loaded_by(host, plugins[0])
    if library is None:
        return Unknown(f"{plugins[0]} names no folder that holds a libpmix.so", ask)
    return spoken_versions({"pmix": library})["pmix"]


def _loaded_by(host: Host, plugin: Path) -> str | None:
    """Return the real file of the libpmix in the folder that a plug-in was built to take it from.

    Slurm writes that folder into the plug-in (PMIXP_V4_LIBPATH and its like in its sources).
    """
    for text in re.findall(rb"\0(/[\w./+\-]+)(?=\0)", plugin.read_bytes()):
        folder = text.decode().rstrip("/")
        for name in ("libpmix.so", "libpmix.so.2"):
            if host.is_file(f"{folder}/{name}"):
                return str(host.at(f"{folder}/{name}").resolve())
    return None
