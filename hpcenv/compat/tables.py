"""Numbers that rules need, in TOML files beside the rules, each row with its source."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from hpcenv.base.record import parse_toml
from hpcenv.base.version import Version

T = TypeVar("T")


def table(kind: type[T], name: str) -> T:
    """Return the table ``rules/NAME.toml``, which is part of the package, read once."""
    whole: Any = kind
    value: T = _read(whole, name)
    return value


@cache
def _read(kind: Any, name: str) -> Any:
    return parse_toml(kind, text_of(name), f"{name}.toml")


def text_of(name: str) -> str:
    """Return a table's text, comments included."""
    return (files("hpcenv.compat.rules") / f"{name}.toml").read_text(encoding="utf-8")


def within(version: Version, since: Version | None, below: Version | None) -> bool:
    """Whether a version lies in ``[since, below)``; a missing bound is no bound."""
    return (since is None or version >= since) and (below is None or version < below)
