"""The one version type.

Versions here come from MPI libraries, drivers, C libraries, Slurm, Debian packages and wheels.
They share dotted numbers; what follows these differs. The order is: numbers first, each compared
as a number, trailing zeros without weight; then what follows, word by word. ``dev``, ``a``, ``b``,
``rc`` and whatever comes after a ``~`` lie before the release itself, all else lies after it;
a number beats a word. So the order agrees with PEP 440 and with dpkg wherever these two agree on
what is a pre-release. A Debian epoch has no weight: it is the packager's, and versions are
compared across packagers here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import total_ordering
from typing import ClassVar, TypeAlias

_SHAPE = re.compile(r"[vV]?(?:\d+:)?(?P<release>\d+(?:\.\d+)*)(?P<rest>.*)", re.ASCII | re.DOTALL)
_WORD = re.compile(r"(?P<mark>[~+])|(?P<letters>[^\W\d_]+)|(?P<number>\d+)")
_BEFORE = {
    "dev": -5,
    "a": -4,
    "alpha": -4,
    "b": -3,
    "beta": -3,
    "c": -2,
    "pre": -2,
    "preview": -2,
    "rc": -2,
}
_TILDE, _END, _LETTERS, _PLUS, _NUMBER = -9, 0, 1, 2, 3

_Word: TypeAlias = tuple[int, int, str]


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
    >>> Version.parse("3.2.5a1") < Version.parse("3.2.5") < Version.parse("3.2.5-1")
    True
    """

    PATTERN: ClassVar[str] = r"^\s*[vV]?[0-9]"

    text: str
    release: tuple[int, ...]
    _order: tuple[tuple[int, ...], tuple[_Word, ...]] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version.

        Raises
        ------
        ValueError
            If `text` does not start with a number.
        """
        text = text.strip()
        match = _SHAPE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a version: it does not start with a number")
        release = tuple(int(part) for part in match["release"].split("."))
        weighed = release
        while len(weighed) > 1 and weighed[-1] == 0:
            weighed = weighed[:-1]
        return cls(text, release, (weighed, _words(match["rest"])))

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return self._order == other._order

    def __lt__(self, other: Version) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)

    def __str__(self) -> str:
        return self.text


def _words(rest: str) -> tuple[_Word, ...]:
    """What follows the dotted numbers, as words that compare as they should."""
    words: list[_Word] = []
    local = False
    found = list(_WORD.finditer(rest.lower()))
    for i, match in enumerate(found):
        if match["mark"]:
            local = local or match["mark"] == "+"
            words.append((_TILDE if match["mark"] == "~" else _PLUS, 0, ""))
        elif match["number"]:
            words.append((_NUMBER, int(match["number"]), ""))
        elif match["letters"] in _BEFORE and not local:
            words.append((_BEFORE[match["letters"]], 0, ""))
        elif match["letters"] != "post" or local:
            # "-3" and ".post3" are the same to PEP 440: the number alone counts.
            words.append((_LETTERS, 0, match["letters"]))
            continue
        # "a" means "a0", and "post" means "post0".
        if match["letters"] and (i + 1 == len(found) or not found[i + 1]["number"]):
            words.append((_NUMBER, 0, ""))
    return (*words, (_END, 0, ""))
