"""What container engines this host has, for a person to read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from hpcenv.base.version import Version
from hpcenv.engines import userns
from hpcenv.engines.apptainer import Apptainer
from hpcenv.engines.engine import Complaint
from hpcenv.engines.provision import installed
from hpcenv.engines.select import candidates


@dataclass(frozen=True)
class Listed:
    """One engine.

    Attributes
    ----------
    name : str
        The product: ``apptainer``, ``singularity-ce``, ``singularity``.
    version : str
        As it says itself, or as Debian says for one that was installed here.
    source : {"private", "system"}
        Whether `hpcenv engine install` put it here.
    modes : tuple of str
        What works for this user; see `Apptainer.modes`.
    released : str
        Date on which its makers packaged it, ISO 8601; empty where that is not known.
    age_days : int, optional
        Since then.
    used : bool
        Whether hpcenv takes this one.
    lacks : tuple of Complaint
        What is missing to run images and to build them, and the line that mends it.
    newer : str, optional
        The newest version, where it was asked for and is newer.
    """

    name: str
    version: str
    path: str
    source: Literal["private", "system"]
    modes: tuple[str, ...]
    released: str
    age_days: int | None
    used: bool
    lacks: tuple[Complaint, ...]
    newer: str | None = None


@dataclass(frozen=True)
class Inventory:
    """All engines, in the order in which they are tried."""

    schema: Literal[1]
    engines: tuple[Listed, ...]


def inventory(engines: Path, newest: str | None, today: date) -> Inventory:
    """Look at every engine of this host.

    Parameters
    ----------
    engines : Path
        The folder for engines of the user's own.
    newest : str, optional
        Debian's newest version of apptainer, where it was asked for.
    """
    found: list[Listed] = []
    for engine in candidates(engines):
        taken = any(listed.used for listed in found)
        found.append(_listed(engine, engines, newest, today, taken))
    return Inventory(1, tuple(found))


def is_newer(newest: str, version: str) -> bool:
    """Whether Debian's `newest` is newer than a version, with or without Debian's revision. Pure.

    >>> is_newer("1.4.5-2", "1.4.5"), is_newer("1.4.5-2", "1.4.5-1"), is_newer("1.5.0-1", "1.4.5")
    (False, True, True)
    """
    if "-" in version:
        return Version.parse(newest) > Version.parse(version)
    return Version.parse(newest.partition("-")[0]) > Version.parse(version)


def table(listed: Sequence[Listed]) -> str:
    """Lay the engines out for a terminal, each complaint with its remedy below it. Pure."""
    lines = []
    for engine in listed:
        mark = "*" if engine.used else " "
        modes = ", ".join(engine.modes) or "no mode works"
        lines.append(f"{mark} {engine.name} {engine.version}  {engine.source}, {modes}")
        lines.append(f"    {engine.path}")
        if engine.released:
            lines.append(f"    packaged {engine.released}, {engine.age_days} days ago")
        if engine.newer:
            lines.append(f"    {engine.newer} is newer:  hpcenv engine install")
        for complaint in engine.lacks:
            lines += [f"    lacks: {complaint.says}", f"      {complaint.remedy}"]
    return "\n".join(lines)


def _listed(
    engine: Apptainer, engines: Path, newest: str | None, today: date, taken: bool
) -> Listed:
    running = engine.check()
    building = userns.no_sub_ids()
    lacks = tuple(dict.fromkeys([*running, *([building] if building else [])]))
    version = engine.version()
    name, text = (version[0], version[1].text) if version else (engine.name, "unknown")
    released = _packaged(engine.program)
    private = installed(engines)
    ours = private is not None and private[0].resolve() == engine.program.resolve()
    if private and ours:
        text, released = private[1].version, date.fromisoformat(private[1].released[:10])
    comparable = newest is not None and name == "apptainer" and re.match(r"\d", text)
    return Listed(
        name=name,
        version=text,
        path=str(engine.program),
        source="private" if ours else "system",
        modes=tuple(sorted(engine.modes())),
        released=released.isoformat(),
        age_days=(today - released).days,
        used=not taken and not any(complaint.fatal for complaint in running),
        lacks=lacks,
        newer=newest if newest and comparable and is_newer(newest, text) else None,
    )


def _packaged(program: Path) -> date:
    # Packages carry their changelog's date as the time of their files.
    return datetime.fromtimestamp(program.stat().st_mtime, UTC).date()
