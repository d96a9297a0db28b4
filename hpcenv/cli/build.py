"""`hpcenv build`, `hpcenv render`, `hpcenv image`: from a recipe or lock to an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hpcenv.cli import output, settings

if TYPE_CHECKING:
    from hpcenv.cli.settings import Settings
    from hpcenv.engines.engine import Engine
    from hpcenv.image.store import Store
    from hpcenv.lock.model import Lock

app = typer.Typer(help="Images of the store: list them, show what is in one.")

_WHAT = typer.Argument(metavar="RECIPE|LOCK", help="A recipe's name or file, or a lock file.")
_LOCK = typer.Argument(metavar="LOCK", help="A lock file.")
_SITE = typer.Option(None, "--site", help="A site profile: a name or a file. Default: this host.")
_TAG = typer.Option(None, "-t", "--tag", metavar="NAME:TAG", help="What to call the image.")
_OUT = typer.Option(None, "-o", "--output", help="Copy the image to this file as well.")
_ENGINE = typer.Option(None, "--engine", help="Which of `engine list` runs the stages.")
_LOCKED = typer.Option(False, "--locked", help="Take the lock as it is, or refuse.")
_OFFLINE = typer.Option(False, "--offline", help="Touch no network: lock and packages are here.")
_FORMAT = typer.Option(..., "--format", help="containerfile or definition.")
_AS_JSON = typer.Option(False, "--json", help="Print JSON.")
_IMAGE = typer.Argument(metavar="IMAGE", help="NAME:TAG, or NAME for the last one built.")


def build(
    what: str = _WHAT,
    site: str | None = _SITE,
    tag: str | None = _TAG,
    out: Path | None = _OUT,
    engine: str | None = _ENGINE,
    locked: bool = _LOCKED,
    offline: bool = _OFFLINE,
) -> None:
    """Build the image of RECIPE for a site, or of LOCK, into the store.

    What was built before is taken from there. Prints the image's file.
    """
    import shutil

    from hpcenv.base.publish import publish
    from hpcenv.build.build import build as build_image
    from hpcenv.build.plan import default_tag
    from hpcenv.image.store import Store, parse_tag

    here = settings.load()
    store = Store(here.store, here.shared)
    named = parse_tag(tag) if tag else None
    lock = _lock_of(what, site, here, store, locked=locked, offline=offline)
    _fetch(lock, site, here, store, offline=offline)
    name, version = named or (lock.recipe.name, default_tag(lock))
    image = build_image(lock, lambda: _engine(engine, here), store, name, version, output.say)
    if out is None:
        output.show(str(image.sif))
        return
    with publish(out.absolute()) as beside:
        shutil.copyfile(image.sif, beside)
        beside.chmod(0o755)
    output.show(str(out))


def render(lock: Path = _LOCK, format: str = _FORMAT) -> None:
    """Print LOCK as a Containerfile or a definition file, complete in itself."""
    import difflib

    from hpcenv.base.errors import BadInput
    from hpcenv.build.build import ours
    from hpcenv.build.containerfile import containerfile
    from hpcenv.build.definition import definition
    from hpcenv.build.plan import plan
    from hpcenv.image.store import Store
    from hpcenv.lock.files import load_lock

    writers = {"containerfile": containerfile, "definition": definition}
    if format not in writers:
        near = difflib.get_close_matches(format, writers, 1)
        raise BadInput(
            f"there is no format {format!r}",
            remedy=f"--format {near[0] if near else ' or --format '.join(writers)}",
        )
    here = settings.load()
    wanted = load_lock(lock)
    own = ours(wanted, Store(here.store, here.shared))
    output.show(writers[format](plan(wanted), own))


@app.command("list")
def list_(as_json: bool = _AS_JSON) -> None:
    """List the images of the store, and of the site's shared one."""
    from hpcenv.base.record import dump_json
    from hpcenv.image.store import Store

    here = settings.load()
    images = Store(here.store, here.shared).images()
    if as_json:
        output.show(
            dump_json(
                [
                    {
                        "name": image.name,
                        "tag": image.tag,
                        "file": image.sif,
                        "size": image.record.size,
                        "sha256": image.record.sif,
                        "manifest": image.manifest,
                    }
                    for image in images
                ]
            )
        )
        return
    rows = [("image", "size", "site", "MPI", "TensorFlow", "Horovod")]
    for image in images:
        about = image.manifest
        rows.append(
            (
                str(image),
                f"{image.record.size / 1e6:.0f} MB",
                about.site,
                f"{about.mpi.family} {about.mpi.version}",
                about.tensorflow or "-",
                about.horovod or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        output.show("  ".join(cells).rstrip())
    if not images:
        output.say(f"there is none in {here.store} yet:  hpcenv build mpi-base")


@app.command()
def show(image: str = _IMAGE, as_json: bool = _AS_JSON) -> None:
    """Show what is in an image of the store."""
    from hpcenv.base.errors import BadInput
    from hpcenv.base.record import dump_json
    from hpcenv.image.store import Store

    here = settings.load()
    found = Store(here.store, here.shared).find(image)
    if isinstance(found, Path):
        raise BadInput(f"{found} is a file, not an image of the store")
    about = found.manifest
    if as_json:
        output.show(dump_json(about))
        return
    facts = {
        "image": str(found),
        "file": str(found.sif),
        "size": f"{found.record.size / 1e6:.0f} MB",
        "SHA-256": found.record.sif,
        "lock": about.lock,
        "site": about.site,
        "system": f"{about.os}, {about.arch}, {len(about.debian)} packages",
        "MPI": f"{about.mpi.family} {about.mpi.version} ({about.mpi.source}): {about.mpi.because}",
        "Python": f"{about.python_version}, {len(about.python)} distributions",
        "TensorFlow": about.tensorflow or "none",
        "Horovod": about.horovod or "none",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        output.show(f"{name.ljust(width)}  {value}")


def _lock_of(
    what: str, site: str | None, here: Settings, store: Store, *, locked: bool, offline: bool
) -> Lock:
    """Return the lock that is meant: of a file, or the one that recipe and site have."""
    from hpcenv.base.errors import BadInput
    from hpcenv.cli.triple import site_of
    from hpcenv.lock.files import load_lock, lock_file, misfits, must_fit
    from hpcenv.lock.keep import locked as kept
    from hpcenv.recipe.load import load_recipe

    if what.endswith(".json"):
        return load_lock(Path(what))
    recipe = load_recipe(what)
    profile = site_of(site or here.site or "", here)
    file = lock_file(recipe, profile)
    if locked or offline:
        if not file.is_file():
            option = "--locked" if locked else "--offline"
            raise BadInput(
                f"{option} needs a lock, and there is no {file}",
                remedy=f"hpcenv lock {what} --site SITE  makes it",
            )
        lock = load_lock(file)
        if locked or misfits(lock, recipe, profile):
            must_fit(lock, recipe, profile, file)
        return lock
    return kept(recipe, profile, file, store.blobs, store.root / "lists", output.say)


def _fetch(lock: Lock, site: str | None, here: Settings, store: Store, *, offline: bool) -> None:
    """Bring what the store lacks, where an image is not already built from it."""
    from hpcenv.build.plan import keys, plan

    whole = plan(lock)
    if store.with_key(keys(whole)[whole.final]) is not None:
        return
    from hpcenv.base.errors import Outside
    from hpcenv.cli.progress import downloads
    from hpcenv.lock.fetch import fetch, missing
    from hpcenv.lock.keep import mirrors_for
    from hpcenv.site.profile import load_site

    lacking = missing(lock, store.blobs)
    if not lacking:
        return
    if offline:
        raise Outside(
            f"the store lacks {len(lacking)} of {len(lock.artefacts)} files, "
            f"such as {lacking[0].file}, and --offline forbids to fetch them",
            where=str(store.root),
            remedy="hpcenv fetch LOCK  where there is a network",
        )
    named = site or here.site
    with downloads("fetch") as progress:
        fetch(lock, store.blobs, mirrors_for(load_site(named) if named else None), progress)


def _engine(named: str | None, here: Settings) -> Engine:
    """Return the engine of that name, command or path; the first usable one where none is named."""
    from hpcenv.base.errors import BadInput
    from hpcenv.engines.select import candidates, usable_engine

    if named is None:
        return usable_engine(here.engines)
    found = candidates(here.engines)
    for engine in found:
        if named in (engine.name, str(engine.program), engine.program.name):
            return engine
    known = ", ".join(str(engine.program) for engine in found) or "none"
    raise BadInput(f"there is no engine {named!r} here", remedy=f"there is: {known}")
