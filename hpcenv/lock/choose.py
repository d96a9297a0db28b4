"""Which MPI goes into an image, given the site's. Pure.

"Pinned to the site's MPI" means the same family, and a version that the site's launcher and its
PMI can carry. What is not known to work is not taken: then the nearest is named, for a person to
decide.

Open MPI: the launcher's PMIx serves the image's PMIx client. Within a major version that is what
upstream promises; an image one major version newer than its launcher was seen to work (5.0.11
under 4.1.4). An image older than its launcher's major version is refused: a PMIx 3 or 4 client in
Open MPI 4 fails under a PMIx 5 server (openpmix#3731, ompi#10307).

MPICH: the wire is PMI-1 or PMI-2, unchanged since 3.1, so any version runs under any Hydra; but a
library that is bound over the image's must not be older (ABI initiative: the minor number of
``libmpi.so.12.MINOR`` may grow, not shrink). So an image of the site's series, or an older one,
serves both models; a newer one serves the hybrid model alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcenv.base.errors import BadInput, Refused
from hpcenv.base.known import Fact, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.image.facts import Family
from hpcenv.lock.menu import Candidate
from hpcenv.recipe.model import MpiWish
from hpcenv.site.model import SiteMpi

_FORCE = 'or write  [mpi]  policy = "fixed", family = "openmpi"  into the recipe'


def choose(
    wish: MpiWish, mpis: Fact[tuple[SiteMpi, ...]], menu: Sequence[Candidate]
) -> tuple[Candidate, str]:
    """Return the candidate for a recipe's wish and a site's MPIs, and why.

    Raises
    ------
    Refused
        If the site's MPI is not known, or nothing on the menu fits it.
    BadInput
        If the recipe names an MPI that is not on the menu.
    """
    if wish.policy == "fixed":
        return fixed(wish, menu), "the recipe names it"
    return match_site(mpis, menu)


def fixed(wish: MpiWish, menu: Sequence[Candidate]) -> Candidate:
    """Return the newest candidate that a recipe's own words fit; packages before wheels.

    Raises
    ------
    BadInput
        If there is none; lists the menu.
    """
    fits = [
        candidate
        for candidate in menu
        if candidate.family == wish.family
        and wish.source in (None, candidate.source)
        and (wish.version is None or _begins(candidate.version, wish.version))
    ]
    if not fits:
        asked = " ".join(filter(None, (wish.family, wish.version, wish.source)))
        raise BadInput(
            f"no MPI on the menu is {asked!r}; there are: {', '.join(map(str, menu))}",
            remedy="change [mpi] of the recipe",
        )
    return max(fits, key=lambda candidate: (candidate.source == "deb", candidate.version))


def match_site(mpis: Fact[tuple[SiteMpi, ...]], menu: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Return what fits the site's first MPI, and why; see `choose`."""
    if isinstance(mpis, Unknown):
        raise Refused(
            f"the site's MPI is not known: {mpis.why}",
            remedy=f"{mpis.ask}; {_FORCE}",
        )
    if not mpis.value:
        raise Refused(
            "this site has no MPI to match",
            remedy="install one, such as  apt-get install openmpi-bin,  and detect the site again; "
            + _FORCE,
        )
    site = mpis.value[0]
    family, version = value_of(site.library.family), value_of(site.library.version)
    for fact, what in ((site.library.family, "family"), (site.library.version, "version")):
        if isinstance(fact, Unknown):
            raise Refused(
                f"the {what} of the site's MPI {site.name} is not known: {fact.why}",
                remedy=f"{fact.ask}; {_FORCE}",
            )
    assert family is not None and version is not None
    where = f"{site.name} {version} at {site.prefix}"
    if family is Family.OPENMPI:
        tier = _openmpi_tier
    elif family is Family.MPICH:
        tier = _mpich_tier
    else:
        raise Refused(
            f"the site's MPI is {family.value} ({where}), for which no image was ever seen to work",
            remedy=f"nearest: {_nearest(menu, 'mpich', version)}.  To try it, {_fix('mpich')}",
        )
    name = family.value
    offered = [
        (t, candidate)
        for candidate in menu
        if candidate.family == name and (t := tier(version, candidate))
    ]
    if not offered:
        raise Refused(
            f"nothing on the menu fits the site's {where}",
            remedy=f"nearest: {_nearest(menu, name, version)}.  To try it, {_fix(name)}",
        )
    best = min(number for number, _ in offered)
    candidate = _best_of((candidate for number, candidate in offered if number == best), version)
    return candidate, f"{_REASON[name][best - 1]} as the site's {where}"


_REASON = {
    "openmpi": (
        "the same series",
        "the same major version",
        "one major version newer, same family",
    ),
    "mpich": ("the same series", "the same ABI, no newer", "the same family, newer: hybrid model"),
}


def _openmpi_tier(site: Version, candidate: Candidate) -> int:
    image = candidate.version
    if site.major < 4:
        return 0
    if image.major == site.major:
        return 1 if image.minor == site.minor else 2
    return 3 if image.major == site.major + 1 else 0


def _mpich_tier(site: Version, candidate: Candidate) -> int:
    image = candidate.version
    if site < _FIRST_ABI:
        return 0
    if (image.major, image.minor) == (site.major, site.minor):
        return 1
    return 2 if image < site else 3


_FIRST_ABI = Version.parse("3.1")


def _best_of(candidates: Iterable[Candidate], site: Version) -> Candidate:
    """The site's own version; else packages before wheels, the nearest series, its newest."""
    newest_first = sorted(candidates, key=lambda candidate: candidate.version, reverse=True)
    return min(
        newest_first,
        key=lambda candidate: (
            candidate.version != site,
            candidate.source != "deb",
            _distance(candidate.version, site),
        ),
    )


def _distance(one: Version, other: Version) -> tuple[int, int]:
    return abs(one.major - other.major), abs(one.minor - other.minor)


def _nearest(menu: Sequence[Candidate], family: str, version: Version) -> str:
    same = [candidate for candidate in menu if candidate.family == family]
    return str(_best_of(same, version)) if same else "none"


def _fix(family: str) -> str:
    return f'write  [mpi]  policy = "fixed", family = "{family}"  into the recipe'


def _begins(version: Version, beginning: str) -> bool:
    text = str(version)
    return text == beginning or text.startswith(beginning.rstrip(".") + ".")
