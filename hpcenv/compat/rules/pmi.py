"""PMI001: the ranks' MPI speaks what `srun --mpi=` serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpcenv.base.known import Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.family import alone
from hpcenv.compat.rules.words import called, evidence_of, loaded_mpi, missing, of_mpis, read
from hpcenv.compat.tables import table, within
from hpcenv.image.facts import Family, ImageFacts, Mpi, Pmi
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteProfile

_SUBJECT = "srun's PMI and the library's"


_SEEN = frozenset({Family.OPENMPI, Family.MPICH, Family.INTEL})
"""Families whose clients were seen under srun, or whose makers or Slurm's describe it."""


@dataclass(frozen=True)
class _Serves:
    type: str
    pmi: frozenset[Pmi]
    source: str


@dataclass(frozen=True)
class _Exception:
    library: Family
    type: str
    outlook: Outlook
    why: str
    remedy: str
    source: str
    since: Version | None = None
    below: Version | None = None


@dataclass(frozen=True)
class _Table:
    serves: tuple[_Serves, ...]
    exception: tuple[_Exception, ...]


def _plain(mpi_type: str) -> str:
    return re.sub(r"^pmix_v\d+$", "pmix", mpi_type)


def served(mpi_type: str) -> frozenset[Pmi] | None:
    """Return what a type of `srun --mpi=` serves; None where it is not known here."""
    rows = table(_Table, "pmi").serves
    return next((row.pmi for row in rows if row.type == _plain(mpi_type)), None)


def _excepted(kind: str, mpi: Mpi) -> _Exception | Unknown | None:
    for row in table(_Table, "pmi").exception:
        if row.library is value_of(mpi.family) and row.type == _plain(kind):
            if isinstance(mpi.version, Unknown):
                return mpi.version
            if within(mpi.version.value, row.since, row.below):
                return row
    return None


def _check(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    loaded = loaded_mpi(site, image, launch)
    if launch.launcher != "srun" or loaded is None:
        return
    mpi, whose = loaded
    kind = launch.mpi_type or "none"
    serves = served(kind)
    if serves is None:
        unknown = Unknown(f"--mpi={kind} is not in the table", "hpcenv validate-mpi on the site")
        yield missing("PMI001", _SUBJECT, f"what --mpi={kind} serves", unknown)
        return
    if isinstance(mpi.family, Unknown):
        yield missing("PMI001", _SUBJECT, f"the family of {whose}'s MPI", mpi.family)
        return
    if isinstance(mpi.pmi, Unknown):
        yield missing("PMI001", _SUBJECT, f"what {called(mpi)} speaks", mpi.pmi)
        return
    row = _excepted(kind, mpi)
    if isinstance(row, Unknown):
        yield missing("PMI001", _SUBJECT, f"the version of {whose}'s MPI", row)
        return
    if row is not None:
        yield Finding(
            rule="PMI001",
            severity=Severity.ERROR,
            subject=_SUBJECT,
            says=f"{called(mpi)} under --mpi={kind}: {row.why}",
            evidence=evidence_of(whose, mpi) + read(f"{whose}'s PMI", mpi.pmi),
            remedy=row.remedy,
            predicts=row.outlook,
        )
        return
    if serves & mpi.pmi.value:
        if mpi.family.value not in _SEEN:
            unmeasured = Unknown(
                f"nobody has measured {called(mpi)} under srun", "hpcenv validate-mpi on the site"
            )
            yield missing("PMI001", _SUBJECT, f"what {called(mpi)} does", unmeasured)
        return
    outlook = _outcome(kind, mpi)
    if outlook is Outlook.UNKNOWN and isinstance(mpi.version, Unknown):
        yield missing("PMI001", _SUBJECT, f"the version of {whose}'s MPI", mpi.version)
        return
    other = _other(site, launch, mpi.pmi.value)
    speaks = ", ".join(sorted(mpi.pmi.value)) or "no PMI"
    offers = ", ".join(sorted(serves)) or "nothing"
    yield Finding(
        rule="PMI001",
        severity=Severity.ERROR,
        subject=_SUBJECT,
        says=f"--mpi={kind} serves {offers}; {called(mpi)} speaks {speaks}",
        evidence=evidence_of(whose, mpi) + read(f"{whose}'s PMI", mpi.pmi),
        remedy=f"use srun --mpi={other.mpi_type}"
        if other
        else "take an image for this site: hpcenv lock RECIPE --site SITE",
        predicts=outlook,
        mend=Mend(use=other) if other else None,
    )


def _outcome(kind: str, mpi: Mpi) -> Outlook:
    if value_of(mpi.family) is Family.OPENMPI:
        return Outlook.FAILS
    return alone(mpi) if kind.startswith("pmix") else Outlook.SINGLETONS


def _other(site: SiteProfile, launch: Launch, speaks: frozenset[Pmi]) -> Launch | None:
    slurm = value_of(site.slurm)
    for kind in sorted(value_of(slurm.mpi_types) or () if slurm else ()):
        common = (served(kind) or frozenset()) & speaks
        if common:
            pmi = Pmi.PMIX if Pmi.PMIX in common else Pmi.PMI2
            return replace(launch, mpi_type=kind, pmi=pmi)
    return None


PMI001 = Rule(
    id="PMI001",
    title="The MPI that the ranks load speaks what srun serves",
    reads=of_mpis("family", "version", "pmi") | {"site.slurm.mpi_types"},
    check=_check,
    doc="""\
Under srun the library that the ranks load (the image's, or the host's in the bind model) talks to
a plug-in of Slurm. Open MPI 5 speaks PMIx alone; Open MPI 4 speaks PMI-1 or PMI-2 only where it
was built with Slurm's libraries (its components mca_pmix_s1 and mca_pmix_s2 tell); MPICH speaks
PMI-1, newer ones PMI-2, and PMIx only where it was linked to libpmix; Intel MPI speaks PMI-1 since
2021. Where nothing fits, Open MPI stops in MPI_Init, and MPICH runs N worlds of one rank (since
4.3 it stops, too, where PMIX_RANK is set).

Remedy: the type that fits. `srun --mpi=list` shows what a site has.""",
    tables=("pmi", "family"),
)
