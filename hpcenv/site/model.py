"""What is true of a site: the profile, as it is written to and read from TOML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpcenv.base.known import Fact, Unknown
from hpcenv.base.version import Version
from hpcenv.image.facts import ElfNeed, Mpi, OsRelease
from hpcenv.sources.mirrors import Mirrors

_UCX_NOT_LOOKED_FOR = Unknown("not looked for", "ucx_info -v")
_OFI_NOT_LOOKED_FOR = Unknown("not looked for", "fi_info --version")


@dataclass(frozen=True)
class SiteMpi:
    """One MPI installation of the site.

    Attributes
    ----------
    name : str
        What people call it: ``openmpi``, or the module's name.
    prefix : str
        Where it is installed.
    launcher : Fact[str]
        Absolute path of its ``mpirun`` or ``mpiexec``.
    module : str, optional
        The environment module that brings it.
    library : Mpi
        Its library, as the image's are described.
        Its file and soname are empty where only the launcher was found.
    needs : Fact[tuple of ElfNeed]
        What the library and its dependencies need of the C library, for the bind model.
    ucx, libfabric : Fact[Version or None]
        The transport libraries that it would load; a known None says that it uses none.
    """

    name: str
    prefix: str
    launcher: Fact[str]
    library: Mpi
    needs: Fact[tuple[ElfNeed, ...]]
    module: str | None = None
    ucx: Fact[Version | None] = _UCX_NOT_LOOKED_FOR
    libfabric: Fact[Version | None] = _OFI_NOT_LOOKED_FOR


@dataclass(frozen=True)
class Slurm:
    """The scheduler: its version and what ``srun --mpi=list`` offers.

    Attributes
    ----------
    mpi_types : Fact[frozenset of str]
        Such as ``pmix``, ``pmix_v4``, ``pmi2``, ``none``.
    pmix : Fact[Version]
        The PMIx library that the plug-in loads.
    """

    version: Fact[Version]
    mpi_types: Fact[frozenset[str]]
    pmix: Fact[Version]


@dataclass(frozen=True)
class Gpu:
    """One kind of accelerator of a node."""

    vendor: str
    name: str
    count: int


@dataclass(frozen=True)
class Fabric:
    """One network that MPI could use: its kind (``infiniband``, ``ethernet``, …) and device."""

    kind: str
    device: str
    rate: str = ""


@dataclass(frozen=True)
class HostEngine:
    """A container engine found on the site, and the modes that work for the user who looked.

    Attributes
    ----------
    modes : Fact[frozenset of str]
        ``root`` (run by root), ``setuid`` (a starter that is suid root), ``rootless`` (by user
        namespaces), ``fakeroot`` (as root of a namespace with sub-ids), ``daemon`` (of root's).
    """

    name: str
    version: Fact[Version]
    path: str
    modes: Fact[frozenset[str]]


@dataclass(frozen=True)
class SiteProfile:
    """A site, from the machine itself, from pasted text, or written by hand.

    Attributes
    ----------
    arch : Fact[str]
        As ``uname -m`` says it.
    cpu_features : Fact[frozenset of str]
        Flags as ``/proc/cpuinfo`` spells them.
    mpis : Fact[tuple of SiteMpi]
        The one that ``mpirun`` on PATH belongs to comes first.
    driver : Fact[Version or None]
        The NVIDIA driver; a known None says that there is no NVIDIA GPU.
    slurm : Fact[Slurm or None]
        A known None says that there is no Slurm.
    privileged : Fact[bool]
        Whether the containers of a node's ranks share one user namespace, the host's: true where
        the engine has a suid starter or root runs it, false where each has one of its own.
    """

    schema: Literal[1]
    name: str
    arch: Fact[str]
    cpu_features: Fact[frozenset[str]]
    cpus: Fact[int]
    os: Fact[OsRelease]
    kernel: Fact[Version]
    libc: Fact[Version]
    mpis: Fact[tuple[SiteMpi, ...]]
    slurm: Fact[Slurm | None]
    driver: Fact[Version | None]
    gpus: Fact[tuple[Gpu, ...]]
    fabrics: Fact[tuple[Fabric, ...]]
    engines: Fact[tuple[HostEngine, ...]]
    privileged: Fact[bool]
    mirrors: Mirrors
