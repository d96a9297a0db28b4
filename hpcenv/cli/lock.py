"""`hpcenv lock` and `hpcenv fetch`: the two commands that touch the network."""

from __future__ import annotations

from pathlib import Path

import typer

from hpcenv.cli import output, settings

_LOCK = typer.Argument(metavar="LOCK", help="A lock file.")
_SITE = typer.Option(None, "--site", help="A site profile: a name or a file. Default: this host.")
_OUT = typer.Option(
    None, "-o", "--output", help="The lock file; RECIPE.SITE.lock.json when left out."
)
_UPGRADE = typer.Option(False, "--upgrade", help="Take today's version of everything.")
_ONE = typer.Option([], "--upgrade-package", help="Take today's version of this package; repeat.")


def lock(
    recipe: str,
    site: str | None = _SITE,
    out: Path | None = _OUT,
    upgrade: bool = _UPGRADE,
    upgrade_package: list[str] = _ONE,
) -> None:
    """Pin everything that goes into an image of RECIPE for SITE: file, version, size, SHA-256.

    A lock that is there already is kept where it still fits. Prints the lock's file name.
    """
    from hpcenv.base.errors import BadInput
    from hpcenv.cli.triple import site_of
    from hpcenv.image.store import Store
    from hpcenv.lock.files import lock_file
    from hpcenv.lock.keep import Upgrade, locked
    from hpcenv.recipe.load import load_recipe

    if upgrade and upgrade_package:
        raise BadInput("--upgrade takes everything: leave --upgrade-package out")
    here = settings.load()
    wanted = load_recipe(recipe)
    profile = site_of(site or here.site or "", here)
    file = out or lock_file(wanted, profile)
    store = Store(here.store, here.shared)
    locked(
        wanted,
        profile,
        file,
        store.blobs,
        store.root / "lists",
        output.say,
        upgrade=Upgrade(upgrade, tuple(upgrade_package)),
    )
    output.show(str(file))


def fetch(lock: Path = _LOCK, site: str | None = _SITE) -> None:
    """Bring every file that LOCK names into the store, so that builds need no network."""
    from hpcenv.cli.progress import downloads
    from hpcenv.image.store import Store
    from hpcenv.lock import fetch as fetching
    from hpcenv.lock.files import load_lock
    from hpcenv.lock.keep import mirrors_for
    from hpcenv.site.profile import load_site

    here = settings.load()
    wanted = load_lock(lock)
    store = Store(here.store, here.shared)
    lacking = fetching.missing(wanted, store.blobs)
    if lacking:
        named = site or here.site
        mirrors = mirrors_for(load_site(named) if named else None)
        with downloads("fetch") as progress:
            fetching.fetch(wanted, store.blobs, mirrors, progress)
    size = sum(artefact.size for artefact in lacking)
    output.show(
        f"{len(wanted.artefacts)} files in the store, {len(lacking)} of them brought now "
        f"({size / 1e6:,.0f} MB)"
    )
