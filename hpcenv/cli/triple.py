"""Site, image and launch, as the arguments of a command name them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcenv.cli.settings import Settings
    from hpcenv.compat.model import Judged
    from hpcenv.image.facts import ImageFacts
    from hpcenv.site.model import SiteProfile


@dataclass(frozen=True)
class Triple:
    """What a command is about.

    Attributes
    ----------
    named : str
        The site as it was asked for; empty where this machine was looked at.
    path : Path
        The image's file or folder.
    judged : tuple of Judged
        Every launch that the site offers and the caller wants, best first.
    nodes, ranks_per_node : int
        At least 1 each.
    """

    site: SiteProfile
    named: str
    path: Path
    facts: ImageFacts
    judged: tuple[Judged, ...]
    nodes: int
    ranks_per_node: int


def triple(
    image: str,
    site: str | None,
    settings: Settings,
    *,
    ranks: int,
    nodes: int | None,
    per_node: int | None,
    launcher: str | None,
) -> Triple:
    """Look at site and image, and judge every launch.

    Raises
    ------
    BadInput
        If the numbers do not go together, or site, image or launcher are not there.
    """
    from hpcenv.compat.predict import predict
    from hpcenv.image.read import read_facts
    from hpcenv.image.rootfs import open_rootfs
    from hpcenv.launch.offers import offers

    nodes, per_node = layout(ranks, nodes, per_node)
    path = image_path(image, settings)
    named = site or settings.site or ""
    profile = site_of(named, settings)
    facts = read_facts(open_rootfs(path))
    verdict = predict(profile, facts, offers(profile, facts, nodes, per_node))
    judged = wanted(verdict.launches, launcher)
    return Triple(profile, named, path, facts, judged, nodes, per_node)


def layout(ranks: int, nodes: int | None, per_node: int | None) -> tuple[int, int]:
    """Return nodes and ranks a node.

    Raises
    ------
    BadInput
        If the ranks cannot be spread evenly, or the three numbers contradict each other.
    """
    from hpcenv.base.errors import BadInput

    if nodes is None:
        nodes = ranks // per_node if per_node else 1
    even, rest = divmod(ranks, nodes) if nodes else (0, 1)
    if rest or even == 0 or per_node not in (None, even):
        asked = f"-n {ranks} -N {nodes}" + (f" --ntasks-per-node {per_node}" if per_node else "")
        raise BadInput(
            f"{asked}: each node must have the same number of ranks",
            remedy=f"try -n {nodes * (per_node or max(1, even))} -N {nodes}",
        )
    return nodes, even


def site_of(named: str, settings: Settings) -> SiteProfile:
    """Return the profile of that name or file, or of this machine where none is named."""
    if named:
        from hpcenv.site.profile import load_site

        return load_site(named)
    import platform

    from hpcenv.site.detect import detect

    return detect(platform.node().split(".")[0] or "here", engines=[settings.engines / "bin"])


def image_path(image: str, settings: Settings) -> Path:
    """Return where an image lies: a file, a folder, or what the stores have under its name."""
    from hpcenv.image.store import Store

    found = Store(settings.store, settings.shared).find(image)
    return found if isinstance(found, Path) else found.sif


def wanted(judged: tuple[Judged, ...], launcher: str | None) -> tuple[Judged, ...]:
    """Keep the launches by a launcher: ``mpirun``, ``srun``, the MPI's name or the ``--mpi`` type.

    Raises
    ------
    BadInput
        If the site offers none by it.
    """
    from hpcenv.base.errors import BadInput

    if launcher is None:
        return judged
    names = {
        name
        for item in judged
        for name in (item.launch.launcher, item.launch.mpi, item.launch.mpi_type)
        if name
    }
    kept = tuple(
        item
        for item in judged
        if launcher in (item.launch.launcher, item.launch.mpi, item.launch.mpi_type)
    )
    if not kept:
        raise BadInput(
            f"the site offers no launcher {launcher!r}",
            remedy=f"it offers: {', '.join(sorted(names)) or 'none'}",
        )
    return kept
