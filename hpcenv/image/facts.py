"""What is true of an image. No I/O here: `read` fills these from files, `expect` from a lock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hpcenv.base.blobs import Digest
from hpcenv.base.known import Fact
from hpcenv.base.version import Version


class Family(StrEnum):
    """A line of MPI libraries that share launcher and run-time conventions."""

    OPENMPI = "openmpi"
    MPICH = "mpich"
    INTEL = "intel-mpi"
    CRAY = "cray-mpich"
    MVAPICH = "mvapich"

    @property
    def mpich_abi(self) -> bool:
        """Whether the family belongs to the MPICH ABI initiative (``libmpi.so.12``)."""
        return self is not Family.OPENMPI

    @property
    def product(self) -> str:
        """Its name as its makers write it."""
        names = ("Open MPI", "MPICH", "Intel MPI", "Cray MPICH", "MVAPICH")
        return dict(zip(Family, names, strict=True))[self]


class Pmi(StrEnum):
    """The wire between launcher and library."""

    PMI1 = "pmi1"
    PMI2 = "pmi2"
    PMIX = "pmix"


@dataclass(frozen=True)
class Abi:
    """The three numbers behind ``libmpi.so.`` in the real file's name."""

    major: int
    minor: int
    micro: int


@dataclass(frozen=True)
class Pmix:
    """The PMIx client of an MPI library.

    Attributes
    ----------
    bundled : bool
        Whether it lies inside the MPI library instead of in a ``libpmix.so`` of its own.
    psec, gds : frozenset of str
        Security and data-store plug-ins present.
    """

    version: Fact[Version]
    bundled: bool
    psec: Fact[frozenset[str]]
    gds: Fact[frozenset[str]]


@dataclass(frozen=True)
class Mpi:
    """One MPI library.

    Attributes
    ----------
    family : Fact[Family]
        Told by content, never by soname: Open MPI 1.10 has MPICH's soname.
    soname : str
        DT_SONAME of the library.
    file : str
        The real file, links resolved, absolute within the image or the host.
    abi : Fact[Abi]
        From the name of the real file.
    pmi : Fact[frozenset[Pmi]]
        The process-management interfaces that it can speak as a client.
    pmix : Fact[Pmix], optional
        None where it has no PMIx client.
    transports : Fact[frozenset[str]]
        Such as ``ucx``, ``ofi``, ``vader``, ``tcp``.
    """

    family: Fact[Family]
    version: Fact[Version]
    soname: str
    file: str
    abi: Fact[Abi]
    pmi: Fact[frozenset[Pmi]]
    pmix: Fact[Pmix] | None
    transports: Fact[frozenset[str]]


@dataclass(frozen=True)
class ElfNeed:
    """The highest version that a file needs of one versioned library."""

    file: str
    library: str
    version: str


@dataclass(frozen=True)
class OsRelease:
    """From ``os-release``: its ID, VERSION_ID and PRETTY_NAME."""

    id: str
    version: str
    name: str


@dataclass(frozen=True)
class Horovod:
    """The Horovod inside: for which TensorFlow it was built, and what is built in."""

    version: Fact[Version]
    tensorflow: Fact[Version]
    controllers: Fact[frozenset[str]]


@dataclass(frozen=True)
class ImageFacts:
    """Everything that compat may ask of an image.

    Attributes
    ----------
    digest : Digest, optional
        SHA-256 of the image file; None where the facts are what a lock promises.
    arch : Fact[str]
        As ``uname -m`` says it: ``x86_64``, ``aarch64``.
    mpis : Fact[tuple of Mpi]
        The one that the dynamic loader finds first comes first.
    python : Fact[Version]
        Of the interpreter that runs the framework.
    """

    schema: Literal[1]
    digest: Digest | None
    arch: Fact[str]
    os: Fact[OsRelease]
    libc: Fact[Version]
    python: Fact[Version]
    mpis: Fact[tuple[Mpi, ...]]
    tensorflow: Fact[Version]
    horovod: Fact[Horovod]
    needs: Fact[tuple[ElfNeed, ...]]
