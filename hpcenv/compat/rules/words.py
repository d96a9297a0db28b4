"""What several rules say in the same way."""

from __future__ import annotations

from typing import Any

from hpcenv.base.known import Fact, Known, Unknown, value_of
from hpcenv.compat.model import Finding, Outlook, Severity
from hpcenv.image.facts import ImageFacts, Mpi, Pmix
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteMpi, SiteProfile


def of_mpis(*facts: str) -> frozenset[str]:
    """Name facts of both sides' MPI libraries, for a rule's `reads`."""
    return frozenset(
        f"{place}.{fact}" for fact in facts for place in ("site.mpis.library", "image.mpis")
    )


def image_mpi(image: ImageFacts) -> Mpi | None:
    """Return the MPI library that the image's loader finds first."""
    mpis = value_of(image.mpis)
    return mpis[0] if mpis else None


def site_mpi(site: SiteProfile, launch: Launch) -> SiteMpi | None:
    """Return the site's MPI that a launch names."""
    return next((mpi for mpi in value_of(site.mpis) or () if mpi.name == launch.mpi), None)


def loaded_mpi(site: SiteProfile, image: ImageFacts, launch: Launch) -> tuple[Mpi, str] | None:
    """Return the library that the ranks load, and whose it is: the image's, or the host's if bound.

    None where it is not known; other rules say so.
    """
    if launch.model == "hybrid":
        mpi = image_mpi(image)
        return (mpi, "the image") if mpi else None
    host = site_mpi(site, launch)
    return (host.library, "the site") if host else None


def pmix_of(mpi: Mpi) -> Pmix | None:
    """Return what is known of the PMIx inside an MPI library."""
    return value_of(mpi.pmix) if mpi.pmix is not None else None


def called(mpi: Mpi) -> str:
    """Name an MPI library: ``Open MPI 4.1.4``."""
    family, version = value_of(mpi.family), value_of(mpi.version)
    name = family.product if family else "an MPI of unknown family"
    return f"{name} {version}" if version else f"{name} (version unknown)"


def read(what: str, fact: Fact[Any]) -> tuple[Known[str], ...]:
    """Return a fact as evidence; an unknown one gives none."""
    if isinstance(fact, Unknown):
        return ()
    value = fact.value
    if isinstance(value, (frozenset, set)):
        value = ", ".join(sorted(str(item) for item in value)) or "none"
    return (Known(f"{what}: {value}", fact.how, fact.where),)


def evidence_of(place: str, mpi: Mpi) -> tuple[Known[str], ...]:
    """Return what an MPI library's family and version were read from."""
    return read(f"{place}'s MPI family", mpi.family) + read(f"{place}'s MPI version", mpi.version)


def missing(rule: str, subject: str, what: str, unknown: Unknown) -> Finding:
    """Say that a rule cannot judge without a fact: the outlook is unknown then, never a yes."""
    return Finding(
        rule=rule,
        severity=Severity.WARNING,
        subject=subject,
        says=f"{what} is not known: {unknown.why}",
        evidence=(),
        remedy=unknown.ask,
        predicts=Outlook.UNKNOWN,
    )
