"""What an image says of itself: ``/etc/hpcenv/manifest.json`` inside, and the store's copy.

It follows from the lock alone, so that the same lock gives the same bytes: nothing here tells
when, where or with which mirror an image was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from hpcenv.base.blobs import Digest

PATH = PurePosixPath("/etc/hpcenv/manifest.json")


@dataclass(frozen=True)
class Package:
    """A package and its version."""

    name: str
    version: str


@dataclass(frozen=True)
class MpiInside:
    """The MPI, where it came from (``deb`` or ``wheel``), and why it was chosen."""

    family: str
    version: str
    source: str
    because: str


@dataclass(frozen=True)
class Manifest:
    """An image's contents.

    Attributes
    ----------
    name : str
        The recipe's name.
    lock : Digest
        SHA-256 of the lock, as `dump_json` writes it.
    site : str
        The site whose MPI the image follows.
    epoch : int
        Seconds since 1970 of every time in the image.
    stages : mapping of str to Digest
        Keys of the stages that the last one was made from.
    debian, python : tuple of Package
        Debian packages and Python distributions, in the lock's order.
    """

    schema: Literal[1]
    name: str
    description: str
    site: str
    os: str
    arch: str
    python_version: str
    lock: Digest
    epoch: int
    mpi: MpiInside
    debian: tuple[Package, ...]
    python: tuple[Package, ...]
    stages: Mapping[str, Digest]
    tensorflow: str | None = None
    horovod: str | None = None
