"""A rule's page as text."""

from __future__ import annotations

import difflib
import tomllib

from hpcenv.base.errors import BadInput
from hpcenv.compat.model import Rule
from hpcenv.compat.registry import RULES
from hpcenv.compat.tables import text_of


def page(name: str) -> str:
    """Return the page of a rule.

    Raises
    ------
    BadInput
        If there is no such rule; it names the nearest.
    """
    rule = next((rule for rule in RULES if rule.id == name.upper()), None)
    if rule is None:
        near = difflib.get_close_matches(name.upper(), [rule.id for rule in RULES], 1, 0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"there is no rule {name!r}", remedy=f"{hint}hpcenv explain lists them all")
    parts = [f"{rule.id}  {rule.title}", rule.doc]
    if rule.reads:
        parts.append("Reads: " + ", ".join(sorted(rule.reads)))
    parts += [_numbers(table) for table in rule.tables]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Return one line a rule."""
    width = max(len(rule.id) for rule in RULES)
    return "\n".join(f"{rule.id:{width}}  {rule.title}" for rule in RULES) + "\n"


def sources(rule: Rule) -> tuple[str, ...]:
    """Return the sources of a rule's numbers."""
    return tuple(
        row["source"]
        for table in rule.tables
        for rows in tomllib.loads(text_of(table)).values()
        for row in rows
    )


def _numbers(table: str) -> str:
    lines = []
    for name, rows in tomllib.loads(text_of(table)).items():
        lines.append(f"{name.capitalize()} ({table}.toml):")
        for row in rows:
            facts = ", ".join(
                f"{key.replace('_', ' ')} {_shown(value)}"
                for key, value in row.items()
                if key not in ("source", "why")
            )
            lines.append(f"  {facts}")
            lines += [f"      {row[key]}" for key in ("why",) if key in row]
            lines.append(f"      source: {row['source']}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " and ".join(str(item) for item in value) or "nothing"
    return str(value)
