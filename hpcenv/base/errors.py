"""What a person can cause, told to that person.

Every error that a user, a network or a disk can bring about is one of these three; the command
line prints it and exits with its status. Anything else that escapes is a defect of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Failure(Exception):
    """Something a person should read.

    Parameters
    ----------
    says : str
        One sentence: what was wrong.
    where : str, optional
        File and line, rank and host, or the command that said so.
    remedy : str, optional
        What to type or change next.
    """

    status = 3

    def __init__(self, says: str, *, where: str | None = None, remedy: str | None = None) -> None:
        super().__init__(says)
        self.says = says
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.where}: {self.says}" if self.where else self.says
        return f"{text}\n  {self.remedy}" if self.remedy else text


class Refused(Failure):
    """The answer is no: no launch works, a verification failed (exit status 1)."""

    status = 1


class BadInput(Failure):
    """A file or an argument is not what it should be (exit status 2)."""

    status = 2


class Outside(Failure):
    """An engine, the network, a disk or a tool failed (exit status 3)."""

    status = 3


@dataclass(frozen=True)
class Problem:
    """One thing wrong in an input: where in it, and what."""

    path: str
    says: str
    line: int | None = None


class BadFile(BadInput):
    """A file with one or more problems, all told at once."""

    def __init__(self, file: str, problems: Sequence[Problem], *, remedy: str | None = None):
        super().__init__(f"{file}: {len(problems)} problem(s)", remedy=remedy)
        self.file = file
        self.problems = tuple(problems)

    def __str__(self) -> str:
        lines = []
        for problem in self.problems:
            place = f"{self.file}:{problem.line}" if problem.line else self.file
            lines.append(f"{place}: {problem.path + ': ' if problem.path else ''}{problem.says}")
        if self.remedy:
            lines.append(f"  {self.remedy}")
        return "\n".join(lines)
