"""A fact is known, with how and where it was learnt, or unknown, with what would tell us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

How: TypeAlias = Literal["read", "ran", "declared", "published"]


@dataclass(frozen=True)
class Known(Generic[T_co]):
    """A value and its provenance.

    Attributes
    ----------
    value : T_co
        What was learnt.
    how : {"read", "ran", "declared", "published"}
        Read from a file, said by a program that was run, written by a person, or taken from a
        published table.
    where : str
        The file, the command line, or the source.
    """

    value: T_co
    how: How
    where: str


@dataclass(frozen=True)
class Unknown:
    """The lack of a value.

    Attributes
    ----------
    why : str
        What was looked for, and where.
    ask : str
        What would tell: a command to run, a line to write into a profile.
    """

    why: str
    ask: str


Fact: TypeAlias = Known[T] | Unknown


def value_of(fact: Fact[T]) -> T | None:
    """Return the value of a known fact, and None for an unknown one."""
    return fact.value if isinstance(fact, Known) else None


def map_fact(fact: Fact[T], function: Callable[[T], U]) -> Fact[U]:
    """Apply a function to the value, keeping where it was learnt."""
    if isinstance(fact, Unknown):
        return fact
    return Known(function(fact.value), fact.how, fact.where)
