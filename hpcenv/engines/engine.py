"""What hpcenv asks of a container engine: very little, so that three can give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol


@dataclass(frozen=True)
class Bind:
    """A host path that is seen inside, read-only unless said otherwise."""

    source: Path
    target: PurePosixPath
    writable: bool = False


@dataclass(frozen=True)
class Complaint:
    """Something that an engine lacks on this host, and the line that mends it."""

    says: str
    remedy: str
    fatal: bool = True


class Engine(Protocol):
    """An engine that is there and usable."""

    @property
    def name(self) -> str:
        """What people call it: ``apptainer``."""
        ...

    def check(self) -> Sequence[Complaint]:
        """Look, before anything is started, at what would go wrong when it runs an image."""
        ...

    def check_run(self, work: Path) -> Sequence[Complaint]:
        """Look, before minutes are spent, at what would go wrong in `run`, trees below `work`."""
        ...

    def run(
        self,
        tree: Path,
        script: str,
        *,
        binds: Sequence[Bind],
        env: Mapping[str, str],
        deadline: float,
        log: Callable[[str], None],
    ) -> None:
        """Run a shell script in a writable tree, as its root, with the network cut.

        The first command that fails ends it. It sees the tree, the binds (whose targets are made
        for it where the tree lacks them), empty ``/tmp`` and ``/var/tmp``, and no more of the
        environment than `env`, a usual PATH, HOME and LANG.

        Raises
        ------
        Outside
            If the script fails, with its last lines.
        """
        ...

    def exec_argv(
        self,
        image: Path,
        argv: Sequence[str],
        *,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
    ) -> list[str]:
        """Return the argument vector that runs `argv` in an image. Pure.

        `args` are more arguments for the engine itself (a mend's ``engine_args``).
        """
        ...
