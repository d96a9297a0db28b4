"""Which MPI goes into an image, given the site's. Pure.

"Pinned to the site's MPI" means the same family, and a version that the site's launcher and its
PMI can carry. Whether they can is asked of the rules of `hpcenv.compat`, which judge the pair as
they will judge the image: there is no second opinion here. Of those that work the nearest is
taken. Where the rules lack a fact, the site's own major version is taken all the same, saying
what is missing, since that is what both makers promise. All else is refused with the nearest
named, for a person to decide.

Nearness: the site's series; then, for Open MPI, its major version, and for MPICH what is no newer,
since a library that is bound over the image's must not be older (ABI initiative: the minor number
of ``libmpi.so.12.MINOR`` may grow, not shrink); then the rest of the family, which serves the
hybrid model alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcenv.base.errors import BadInput, Refused
from hpcenv.base.known import Known, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.compat.model import Judged, Outlook
from hpcenv.compat.predict import judge
from hpcenv.image.facts import Family, ImageFacts
from hpcenv.launch.model import Launch
from hpcenv.lock.expect import library
from hpcenv.lock.menu import LABEL, Candidate
from hpcenv.recipe.model import MpiWish
from hpcenv.site.model import SiteMpi, SiteProfile

_FORCE = 'or write  [mpi]  policy = "fixed", family = "openmpi"  into the recipe'


def choose(wish: MpiWish, site: SiteProfile, menu: Sequence[Candidate]) -> tuple[Candidate, str]:
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
    return match_site(site, menu)


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


def match_site(site: SiteProfile, menu: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Return what fits the site's first MPI, and why; see `choose`."""
    mpi, host = _first(site)
    offered = [fit for candidate in menu if (fit := _fit(site, mpi, host, candidate))]
    if not offered:
        family = "openmpi" if host.family is Family.OPENMPI else "mpich"
        raise Refused(
            f"nothing on the menu is known to work under the launcher of the site's {host.where}",
            remedy=f"nearest: {_nearest(menu, family, host.version)}.  To try it, {_fix(family)}",
        )
    best = min(fit.place for fit in offered)
    fits = {fit.candidate: fit for fit in offered if fit.place == best}
    candidate = _best_of(fits, host.version)
    return candidate, fits[candidate].because


@dataclass(frozen=True)
class _Host:
    family: Family
    version: Version
    where: str


def _first(site: SiteProfile) -> tuple[SiteMpi, _Host]:
    """Return the site's first MPI and what must be known of it."""
    if isinstance(site.mpis, Unknown):
        raise Refused(
            f"the site's MPI is not known: {site.mpis.why}",
            remedy=f"{site.mpis.ask}; {_FORCE}",
        )
    if not site.mpis.value:
        raise Refused(
            "this site has no MPI to match",
            remedy="install one, such as  apt-get install openmpi-bin,  and detect the site again; "
            + _FORCE,
        )
    mpi = site.mpis.value[0]
    family, version = mpi.library.family, mpi.library.version
    for fact, what in ((family, "family"), (version, "version")):
        if isinstance(fact, Unknown):
            raise Refused(
                f"the {what} of the site's MPI {mpi.name} is not known: {fact.why}",
                remedy=f"{fact.ask}; {_FORCE}",
            )
    assert isinstance(family, Known) and isinstance(version, Known)
    where = f"{mpi.name} {version.value} at {mpi.prefix}"
    return mpi, _Host(family.value, version.value, where)


@dataclass(frozen=True)
class _Fit:
    """A candidate that may be taken; `place` is the lower the better."""

    candidate: Candidate
    place: tuple[int, int]
    because: str


def _fit(site: SiteProfile, mpi: SiteMpi, host: _Host, candidate: Candidate) -> _Fit | None:
    judged = judge(
        site,
        _image_with(candidate, site),
        Launch("mpirun", "hybrid", value_of(site.privileged) is not True, 1, 2, mpi.name),
    )
    distance, relation = _relation(host, candidate)
    because = f"{relation} the site's {host.where}"
    if judged.outlook.rank < Outlook.UNKNOWN.rank:
        return _Fit(candidate, (judged.outlook.rank, distance), because)
    promised = host.family == candidate.family and host.version.major == candidate.version.major
    if judged.outlook is Outlook.UNKNOWN and promised:
        return _Fit(candidate, (judged.outlook.rank, distance), f"{because}; {_lack(judged)}")
    return None


def _lack(judged: Judged) -> str:
    return next(found.says for found in judged.findings if found.predicts is Outlook.UNKNOWN)


def _image_with(candidate: Candidate, site: SiteProfile) -> ImageFacts:
    """Return an image of which nothing is known but its MPI, and that it is made for the site."""
    unsaid = Unknown("the image is not chosen yet", "build it")
    return ImageFacts(
        schema=1,
        digest=None,
        arch=site.arch,
        os=unsaid,
        libc=unsaid,
        python=unsaid,
        mpis=Known((library(candidate, value_of(site.arch) or ""),), "published", str(candidate)),
        tensorflow=unsaid,
        horovod=unsaid,
        needs=unsaid,
    )


def _relation(host: _Host, candidate: Candidate) -> tuple[int, str]:
    """Return how far a candidate is from the site's MPI, and in words."""
    image = candidate.version
    if candidate.family != host.family:
        return 4, f"{LABEL[candidate.family]} is what runs under"
    if (image.major, image.minor) == (host.version.major, host.version.minor):
        return 1, "the same series as"
    if host.family is Family.OPENMPI and image.major == host.version.major:
        return 2, "the same major version as"
    if host.family is Family.MPICH and image < host.version:
        return 2, "of the ABI of, and older than,"
    return 3, f"the same family, and {'newer' if image > host.version else 'older'} than"


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
