"""The machine that is looked at: its files, its programs, and how what they say becomes a fact."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hpcenv.base.errors import Outside
from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.process import run

T = TypeVar("T")

DEADLINE_S = 10.0
"""A tool that describes a machine answers in a fraction of a second; one that hangs is left."""


@dataclass(frozen=True)
class Host:
    """A machine.

    Attributes
    ----------
    root : Path
        Its root folder; ``/`` but in tests.
    env : mapping
        The environment, with the PATH that programs are found on.
    """

    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def path(self) -> tuple[str, ...]:
        """The folders of PATH, each once, in its order."""
        folders = self.env.get("PATH", os.defpath).split(os.pathsep)
        return tuple(dict.fromkeys(folder for folder in folders if folder.startswith("/")))

    def at(self, path: str) -> Path:
        """Return where an absolute path of the machine lies."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """Return a file's text, None where it is not there or may not be read."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def is_folder(self, path: str) -> bool:
        """Whether a folder is there, as far as this user may know."""
        with contextlib.suppress(OSError):
            return self.at(path).is_dir()
        return False

    def is_file(self, path: str) -> bool:
        """Whether a regular file is there, links followed, as far as this user may know."""
        with contextlib.suppress(OSError):
            return self.at(path).is_file()
        return False

    def folder(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a folder; none where it may not be read."""
        try:
            return tuple(sorted(entry.name for entry in self.at(path).iterdir()))
        except OSError:
            return ()

    def program(self, name: str) -> str | None:
        """Return the absolute path of a program on PATH."""
        return shutil.which(name, path=os.pathsep.join(self.path))

    def read(self, path: str, parse: Callable[[str], T | None], ask: str) -> Fact[T]:
        """Learn a fact from a file."""
        text = self.text(path)
        if text is None:
            return Unknown(f"{path} is not there or may not be read", ask)
        value = parse(text)
        if value is None:
            return Unknown(f"{path} does not say it", ask)
        return Known(value, "read", path)

    def ran(
        self,
        argv: Sequence[str],
        parse: Callable[[str], T | None],
        ask: str,
        *,
        deadline: float = DEADLINE_S,
        env: Mapping[str, str] | None = None,
    ) -> Fact[T]:
        """Learn a fact from what a program prints, on whichever stream.

        Parameters
        ----------
        argv : sequence of str
            The program, by name on PATH or by absolute path, and its arguments.
        deadline : float
            Seconds after which it is ended and counts as silent.
        env : mapping, optional
            More environment for it.
        """
        program = argv[0] if argv[0].startswith("/") else self.program(argv[0])
        if program is None:
            return Unknown(f"{argv[0]} is on none of PATH's {len(self.path)} folders", ask)
        line = " ".join(argv)
        try:
            outcome = run([program, *argv[1:]], deadline=deadline, env={**self.env, **(env or {})})
        except Outside as failure:
            return Unknown(failure.says, ask)
        if outcome.timed_out:
            return Unknown(f"{line} did not end within {deadline:.0f} s", ask)
        value = parse(outcome.out + "\n" + outcome.err)
        if value is not None:
            return Known(value, "ran", line)
        said = last_line(outcome.err) or last_line(outcome.out)
        what = f", saying {said!r}" if said else ""
        return Unknown(f"{line} ended with status {outcome.status}{what}", ask)


def last_line(text: str) -> str:
    """Return the last line that is not empty, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def first_known(facts: Iterable[Callable[[], Fact[T]]], ask: str) -> Fact[T]:
    """Return the first fact that is known, or an unknown that tells why each is not."""
    why = []
    for learn in facts:
        fact = learn()
        if isinstance(fact, Known):
            return fact
        why.append(fact.why)
    return Unknown("; ".join(why), ask)
