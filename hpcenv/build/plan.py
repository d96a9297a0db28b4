"""From a lock to stages. Pure: the same lock gives the same plan and the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from hpcenv.base.blobs import Digest
from hpcenv.lock.model import Artefact


@dataclass(frozen=True)
class Bootstrap:
    """Make a root file system of Debian packages."""

    kind: Literal["bootstrap"]
    suite: str
    debs: tuple[Artefact, ...]


@dataclass(frozen=True)
class InstallDebs:
    """Add Debian packages."""

    kind: Literal["install-debs"]
    debs: tuple[Artefact, ...]


@dataclass(frozen=True)
class InstallWheels:
    """Install wheels into the environment at `prefix`, which is made where it is missing."""

    kind: Literal["install-wheels"]
    prefix: PurePosixPath
    wheels: tuple[Artefact, ...]


@dataclass(frozen=True)
class BuildWheel:
    """Build a wheel from source into the folder `out`.

    Attributes
    ----------
    env : mapping
        Environment of the build: compiler flags, feature switches.
    expects : tuple of str
        What the build must contain, else it fails.
    """

    kind: Literal["build-wheel"]
    source: Artefact
    patches: tuple[Artefact, ...]
    env: Mapping[str, str]
    out: PurePosixPath
    expects: tuple[str, ...]


@dataclass(frozen=True)
class WriteFile:
    """Write a small file; `mode` is its permission bits, such as 0o644."""

    kind: Literal["write-file"]
    path: PurePosixPath
    content: str
    mode: int


@dataclass(frozen=True)
class TakeFiles:
    """Take members of a wheel (a zip file) into a folder."""

    kind: Literal["take-files"]
    wheel: Artefact
    members: tuple[str, ...]
    into: PurePosixPath


@dataclass(frozen=True)
class Run:
    """Run a shell script."""

    kind: Literal["run"]
    script: str


Step: TypeAlias = Bootstrap | InstallDebs | InstallWheels | BuildWheel | WriteFile | TakeFiles | Run


@dataclass(frozen=True)
class Stage:
    """A unit of work and of cache.

    Attributes
    ----------
    parent : str, optional
        Name of the stage whose root file system it starts from.
    takes : tuple of (str, PurePosixPath)
        Stages and the paths copied from each, before the steps.
    """

    name: str
    parent: str | None
    steps: tuple[Step, ...]
    takes: tuple[tuple[str, PurePosixPath], ...] = ()


@dataclass(frozen=True)
class BuildPlan:
    """Stages in an order in which each comes after what it needs; `final` becomes the image."""

    stages: tuple[Stage, ...]
    final: str
    env: Mapping[str, str]
    labels: Mapping[str, str]
    epoch: int

    def stage(self, name: str) -> Stage:
        """Return the stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)


def key(stage: Stage, of: Mapping[str, Digest], epoch: int) -> Digest:
    """Return the cache key of a stage, given the keys of the stages it needs."""
    import hashlib
    import json

    from hpcenv.base.record import encode

    content = {
        "stage": encode(stage),
        "needs": {name: of[name] for name in [stage.parent, *(n for n, _ in stage.takes)] if name},
        "epoch": epoch,
    }
    return Digest(hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest())
