"""The one version type.

Versions here come from MPI libraries, drivers, C libraries, Slurm, Debian packages and wheels.
They share dotted numbers; what follows the numbers differs. The order is: numbers first, each
compared as a number, trailing zeros without weight; then a pre-release (``a``, ``b``, ``rc``,
``dev``, ``alpha``, ``beta``) before the release itself; then whatever else follows, after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import total_ordering

_SHAPE = re.compile(
    r"^\s*[vV]?(?:\d+:)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[.\-~_]?(?P<pre>a|b|rc|dev|alpha|beta|pre)[.\-_]?(?P<number>\d*)(?![A-Za-z]))?"
    r"(?P<rest>.*?)\s*$",
    re.DOTALL,
)
_PRE_ORDER = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "pre": 3, "rc": 3}


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """A version, ordered as its makers mean it.

    Attributes
    ----------
    text : str
        As it was read.
    release : tuple of int
        The dotted numbers.

    Examples
    --------
    >>> Version.parse("2.35.1") > Version.parse("2.35")
    True
    >>> Version.parse("4.1.4-3+b1").release
    (4, 1, 4)
    >>> Version.parse("3.2.5a1") < Version.parse("3.2.5")
    True
    """

    text: str
    release: tuple[int, ...]
    pre: tuple[int, int] | None = None
    rest: str = field(default="")

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version.

        Raises
        ------
        ValueError
            If `text` does not start with a number.
        """
        match = _SHAPE.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a version: it does not start with a number")
        pre = None
        if match["pre"]:
            pre = (_PRE_ORDER[match["pre"]], int(match["number"] or 0))
        release = tuple(int(part) for part in match["release"].split("."))
        return cls(text.strip(), release, pre, match["rest"])

    @property
    def major(self) -> int:
        """The first number."""
        return self.release[0]

    @property
    def minor(self) -> int:
        """The second number, 0 where there is none."""
        return self.release[1] if len(self.release) > 1 else 0

    @property
    def micro(self) -> int:
        """The third number, 0 where there is none."""
        return self.release[2] if len(self.release) > 2 else 0

    def _order(self) -> tuple[tuple[int, ...], tuple[int, int], str]:
        release = self.release
        while len(release) > 1 and release[-1] == 0:
            release = release[:-1]
        return release, self.pre or (9, 0), self.rest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return self._order() == other._order()

    def __lt__(self, other: Version) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return self._order() < other._order()

    def __hash__(self) -> int:
        return hash(self._order())

    def __str__(self) -> str:
        return self.text
