"""The lock that a recipe and a site have: the one on disk while it fits, else a new one."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hpcenv.base.blobs import Blobs
from hpcenv.base.errors import BadInput
from hpcenv.lock.files import load_lock, misfits, save_lock
from hpcenv.lock.model import Lock
from hpcenv.lock.resolve import Say, patches, resolve, runtime
from hpcenv.recipe.model import Recipe
from hpcenv.site.model import SiteProfile
from hpcenv.sources.configured import detect_mirrors
from hpcenv.sources.mirrors import Mirrors


@dataclass(frozen=True)
class Upgrade:
    """What of an earlier lock is not kept: everything, some packages by name, or nothing."""

    everything: bool = False
    packages: tuple[str, ...] = ()


def locked(
    recipe: Recipe,
    site: SiteProfile,
    file: Path,
    blobs: Blobs,
    work: Path,
    say: Say,
    *,
    upgrade: Upgrade = Upgrade(),
    mirrors: Callable[[SiteProfile], Mirrors] | None = None,
) -> Lock:
    """Return the lock at `file`, made or made anew where that is needed.

    A lock that still fits is kept as it is, without the network; only what hpcenv itself makes,
    the runtime and the patches, follows the installed hpcenv.

    Raises
    ------
    BadInput
        If a package to upgrade is not in the lock.
    Failure
        What `hpcenv.lock.resolve.resolve` raises; the file is then as it was.
    """
    before = load_lock(file) if file.is_file() else None
    if before is not None:
        _know(upgrade, before, file)
        reasons = misfits(before, recipe, site)
        for reason in reasons:
            say(f"{file}: {reason}")
        if not reasons and upgrade == Upgrade():
            return _kept(before, file, blobs, say)
    lock = resolve(
        recipe,
        site,
        (mirrors or mirrors_for)(site),
        blobs,
        work,
        say,
        prefer=None if upgrade.everything else before,
        upgrade=upgrade.packages,
    )
    save_lock(lock, file)
    return lock


def mirrors_for(site: SiteProfile | None) -> Mirrors:
    """Return where to look for packages: what the profile says, else what this host is set to."""
    if site is not None and (site.mirrors.apt or site.mirrors.index):
        return site.mirrors
    return detect_mirrors()


def _know(upgrade: Upgrade, lock: Lock, file: Path) -> None:
    known = {artefact.name for artefact in lock.artefacts}
    for name in upgrade.packages:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]!r}?" if near else None
            raise BadInput(f"no package {name!r} is locked", where=str(file), remedy=remedy)


def _kept(lock: Lock, file: Path, blobs: Blobs, say: Say) -> Lock:
    ours = (*patches(lock.recipe, blobs), runtime(blobs))
    if lock.of("patch", "runtime") == ours:
        return lock
    say(f"{file}: hpcenv's own runtime or patches changed; the rest is kept")
    others = tuple(a for a in lock.artefacts if a.role not in ("patch", "runtime"))
    changed = replace(lock, artefacts=(*others, *ours))
    save_lock(changed, file)
    return changed
