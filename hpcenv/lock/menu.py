"""The MPI libraries that an image can have, and what each asks for in packages."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcenv.base.record import load_toml
from hpcenv.base.version import Version
from hpcenv.image.facts import Pmi


@dataclass(frozen=True)
class PmixClient:
    """The PMIx library of an Open MPI: see `hpcenv.image.facts.Pmix`."""

    version: Version
    bundled: bool
    psec: frozenset[str]
    gds: frozenset[str]


@dataclass(frozen=True)
class Candidate:
    """One MPI of the menu.

    Attributes
    ----------
    source : {"deb", "wheel"}
        A Debian package of `os`, or a PyPI wheel, which any operating system here can carry.
    file : str
        Where the library lies in the image; ``{arch}`` stands for the machine.
    """

    family: Literal["openmpi", "mpich"]
    version: Version
    source: Literal["deb", "wheel"]
    soname: str
    file: str
    pmi: frozenset[Pmi]
    os: str | None = None
    pmix: PmixClient | None = None
    transports: frozenset[str] = frozenset()

    def __str__(self) -> str:
        kind = f"{self.os}'s package" if self.source == "deb" else "PyPI wheel"
        return f"{LABEL[self.family]} {self.version} ({kind})"


LABEL = {"openmpi": "Open MPI", "mpich": "MPICH"}


@dataclass(frozen=True)
class _Menu:
    schema: Literal[1]
    mpi: tuple[Candidate, ...]


def menu(os: str) -> tuple[Candidate, ...]:
    """Return the MPIs that an image of that operating system can have; packages come first."""
    return tuple(candidate for candidate in _all() if candidate.os in (None, os))


@functools.cache
def _all() -> tuple[Candidate, ...]:
    return load_toml(_Menu, Path(__file__).with_name("menu.toml")).mpi


@dataclass(frozen=True)
class Packages:
    """What an MPI brings into a lock.

    Attributes
    ----------
    system, compiler : tuple of str
        Debian packages of the image, and more for compiling against the library.
    python : tuple of str
        Requirements of the image's Python environment.
    """

    system: tuple[str, ...] = ()
    compiler: tuple[str, ...] = ()
    python: tuple[str, ...] = ()


def packages(candidate: Candidate) -> Packages:
    """Return what a candidate brings. Wheels have their headers and compiler wrappers with them."""
    if candidate.source == "wheel":
        return Packages(python=(f"{candidate.family}=={candidate.version}.*",))
    if candidate.family == "openmpi":
        return Packages(system=("openmpi-bin",), compiler=("libopenmpi-dev",))
    return Packages(system=("mpich",), compiler=("libmpich-dev",))
