"""The lock: everything that may get into an image, by name, version, size and SHA-256.

It names no URL and no registry: where a file comes from is the fetching host's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from hpcenv.base.blobs import Digest
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.recipe.model import Recipe

Role = Literal["system", "compiler", "python", "build-python", "source", "patch", "data", "runtime"]
"""What a build does with an artefact.

``system``: Debian packages of the final image. ``compiler``: Debian packages of the builder stage
alone. ``python``: wheels of the final image. ``build-python``: wheels of the builder stage alone.
``source`` and ``patch``: the Horovod source distribution and its patches. ``data``: wheels that
files are taken from. ``runtime``: the hpcenv-runtime wheel.
"""


@dataclass(frozen=True)
class Artefact:
    """One file.

    Attributes
    ----------
    file : str
        For a Debian package its path below the archive's root (``pool/main/…``), else its name.
    size : int
        Bytes.
    """

    kind: Literal["deb", "wheel", "sdist", "patch", "local"]
    role: Role
    name: str
    version: str
    file: str
    size: int
    sha256: Digest

    @property
    def upstream(self) -> Version:
        """The maker's version: Debian's ``1:4.3.0+really4.2.1-1`` is 4.2.1."""
        if self.kind != "deb":
            return Version.parse(self.version)
        text = self.version.rpartition(":")[2]
        text = text.rpartition("-")[0] or text
        return Version.parse(re.split(r"[+~]", text.rpartition("+really")[2])[0])


@dataclass(frozen=True)
class Release:
    """A signed Debian index that was solved against: its suite, its date, its own digest."""

    suite: str
    date: str
    sha256: Digest


@dataclass(frozen=True)
class Target:
    """What the image is for."""

    os: str
    suite: str
    arch: Literal["x86_64", "aarch64"]
    python: str


@dataclass(frozen=True)
class MpiChoice:
    """The MPI that goes in, and why it was chosen."""

    family: Family
    version: Version
    source: Literal["deb", "wheel"]
    because: str


@dataclass(frozen=True)
class Lock:
    """A recipe resolved for a site.

    Attributes
    ----------
    recipe : Recipe
        The recipe as it was resolved, so that a plan needs nothing but the lock.
    site : str
        The site's name.
    epoch : int
        Seconds since 1970: the newest date among the releases. Every time within the image.
    """

    schema: Literal[1]
    recipe: Recipe
    site: str
    target: Target
    mpi: MpiChoice
    releases: tuple[Release, ...]
    artefacts: tuple[Artefact, ...]
    epoch: int

    def of(self, *roles: Role) -> tuple[Artefact, ...]:
        """Return the artefacts with one of these roles, in the lock's order."""
        return tuple(artefact for artefact in self.artefacts if artefact.role in roles)
