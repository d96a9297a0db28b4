"""Lock files: where they lie, how they are read, and whether one still fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcenv.base.errors import BadFile, BadInput, Refused
from hpcenv.base.publish import publish
from hpcenv.base.record import dump_json, load_json
from hpcenv.base.schema import schema
from hpcenv.lock.choose import choose
from hpcenv.lock.menu import menu
from hpcenv.lock.model import Lock
from hpcenv.lock.resolve import target_of
from hpcenv.recipe.model import Recipe
from hpcenv.site.model import SiteProfile


def lock_file(recipe: Recipe, site: SiteProfile, folder: Path = Path()) -> Path:
    """Return where the lock of a recipe for a site lies: ``RECIPE.SITE.lock.json``. Pure."""
    return folder / f"{recipe.name}.{site.name}.lock.json"


def load_lock(file: Path) -> Lock:
    """Read a lock.

    Raises
    ------
    BadFile, BadInput
        If it is none; a lock is never mended by hand.
    """
    try:
        return load_json(Lock, file)
    except BadFile as error:
        remedy = "a lock is written by  hpcenv lock RECIPE --site SITE,  never by hand"
        raise BadFile(error.file, error.problems, remedy=remedy) from None


def save_lock(lock: Lock, file: Path) -> None:
    """Write a lock; the file is the old one or the new one, at every moment."""
    with publish(file) as beside:
        beside.write_text(dump_json(lock), encoding="utf-8")


def lock_schema() -> dict[str, Any]:
    """Return the JSON Schema of a lock file."""
    return schema(Lock, "hpcenv lock")


def misfits(lock: Lock, recipe: Recipe, site: SiteProfile) -> tuple[str, ...]:
    """Return why a lock no longer serves a recipe and a site, a phrase each; empty when it does.

    Pure, without the network: what the archive has by now is no reason.
    """
    reasons = []
    if lock.recipe != recipe:
        parts = [
            field
            for field in Recipe.__dataclass_fields__
            if getattr(lock.recipe, field) != getattr(recipe, field)
        ]
        reasons.append(f"the recipe changed in {', '.join(parts)}")
    if lock.site != site.name:
        reasons.append(f"it is for site {lock.site}, not {site.name}")
    try:
        if lock.target != target_of(recipe, site):
            reasons.append("it is for another operating system or machine")
        candidate, _ = choose(recipe.mpi, site, menu(recipe.base.os))
    except (BadInput, Refused) as error:
        return (*reasons, error.says)
    if (lock.mpi.family.value, lock.mpi.source) != (candidate.family, candidate.source) or (
        lock.mpi.version.release[:2] != candidate.version.release[:2]
    ):
        reasons.append(f"the site's MPI now asks for {candidate}")
    return tuple(reasons)


def must_fit(lock: Lock, recipe: Recipe, site: SiteProfile, file: Path) -> None:
    """Refuse a lock that no longer serves, for those who want it as it is (``--locked``).

    Raises
    ------
    Refused
        With every reason.
    """
    reasons = misfits(lock, recipe, site)
    if reasons:
        raise Refused(
            f"the lock does not match {recipe.name} for site {site.name}: {'; '.join(reasons)}",
            where=str(file),
            remedy=f"hpcenv lock {recipe.name} --site SITE  makes one that does",
        )
