"""Bring everything that a lock names into the store: the second and last step on the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcenv.base.blobs import Blobs
from hpcenv.base.errors import Outside
from hpcenv.lock.model import Artefact, Lock
from hpcenv.lock.resolve import patches, runtime
from hpcenv.sources.apt import sources_for, url_of
from hpcenv.sources.download import Progress, Wanted, download
from hpcenv.sources.index import locate
from hpcenv.sources.mirrors import Mirrors

_OURS = ("local", "patch")  # what hpcenv makes, and no mirror has


def missing(lock: Lock, blobs: Blobs) -> tuple[Artefact, ...]:
    """Return what the store lacks of a lock."""
    return tuple(artefact for artefact in lock.artefacts if not blobs.has(artefact.sha256))


def fetch(
    lock: Lock,
    blobs: Blobs,
    mirrors: Mirrors,
    progress: Progress = lambda tally: None,
) -> tuple[Artefact, ...]:
    """Bring what the store lacks; does not touch the network when that is nothing.

    Returns
    -------
    tuple of Artefact
        What was brought.

    Raises
    ------
    Outside
        If something cannot be had; says which file, which hosts were asked, and what to do.
    Refused
        If a file is not the one that was locked.
    """
    lacking = missing(lock, blobs)
    if not lacking:
        return ()
    if any(artefact.kind in _OURS for artefact in lacking):
        made = {artefact.sha256 for artefact in (*patches(lock.recipe, blobs), runtime(blobs))}
        lacking = tuple(artefact for artefact in lacking if artefact.sha256 not in made)
    ours = [artefact for artefact in lacking if artefact.kind in _OURS]
    if ours:
        raise Outside(
            f"{ours[0].file} is not in the store {blobs.root}, and is on no mirror: it was made "
            "by another hpcenv than this one",
            remedy=f"hpcenv lock {lock.recipe.name} --site SITE  makes today's",
        )
    files = [artefact for artefact in lacking if artefact.kind != "deb"]
    places = locate({artefact.file: artefact.sha256 for artefact in files}, mirrors)
    download([_wanted(a, lock, places, mirrors) for a in lacking], blobs, mirrors, progress)
    return lacking


def _wanted(
    artefact: Artefact, lock: Lock, places: Mapping[str, Sequence[str]], mirrors: Mirrors
) -> Wanted:
    if artefact.kind == "deb":
        archives = sources_for(mirrors, lock.target.suite)
        urls = tuple(url_of(archive, artefact.file) for archive in archives)
        name = f"{artefact.name} {artefact.version}"
    else:
        urls = tuple(places[artefact.file])
        name = artefact.file
    return Wanted(name, artefact.size, artefact.sha256, urls)
