"""PMI001 and PMI002: the image's MPI speaks what `srun --mpi=` serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpcenv.base.known import Unknown, value_of
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.family import alone
from hpcenv.compat.rules.words import called, evidence_of, loaded_mpi, missing, read
from hpcenv.compat.tables import table
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
class _Table:
    serves: tuple[_Serves, ...]


def served(mpi_type: str) -> frozenset[Pmi] | None:
    """Return what a type of `srun --mpi=` serves; None where it is not known here."""
    plain = re.sub(r"^pmix_v\d+$", "pmix", mpi_type)
    return next((row.pmi for row in table(_Table, "pmi").serves if row.type == plain), None)


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
        else f"take an image for this site: hpcenv lock RECIPE --site {site.name}",
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
    title="The image's MPI speaks what srun serves",
    reads=frozenset(
        {
            "image.mpis.family",
            "image.mpis.version",
            "image.mpis.pmi",
            "site.mpis.library.family",
            "site.mpis.library.version",
            "site.mpis.library.pmi",
        }
    ),
    check=_check,
    doc="""\
Under srun the library of the image talks to a plug-in of Slurm. Open MPI 5 speaks PMIx alone;
Open MPI 4 speaks PMI-1 or PMI-2 only where it was built with Slurm's libraries (its components
mca_pmix_s1 and mca_pmix_s2 tell); MPICH speaks PMI-1, newer ones PMI-2, and PMIx only where it was
linked to libpmix. Where nothing fits, Open MPI stops in MPI_Init, and MPICH runs N worlds of one
rank (since 4.3 it stops, too, where PMIX_RANK is set).

Remedy: the type that fits. `srun --mpi=list` shows what a site has.""",
    tables=("pmi", "family"),
)


def _intel(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    loaded = loaded_mpi(site, image, launch)
    if launch.launcher != "srun" or loaded is None:
        return
    mpi, whose = loaded
    if value_of(mpi.family) is not Family.INTEL or launch.mpi_type != "pmi2":
        return
    yield Finding(
        rule="PMI002",
        severity=Severity.ERROR,
        subject="Intel MPI under srun",
        says="Intel MPI speaks PMI-2 only through a library that I_MPI_PMI_LIBRARY names",
        evidence=evidence_of(whose, mpi),
        remedy=(
            "bind Slurm's libpmi2.so into the image and "
            "export I_MPI_PMI_LIBRARY=/path/in/image/libpmi2.so"
        ),
        predicts=Outlook.SINGLETONS,
    )


PMI002 = Rule(
    id="PMI002",
    title="Intel MPI under srun needs Slurm's PMI-2 library",
    reads=frozenset({"image.mpis.family"}),
    check=_intel,
    doc="""\
Intel MPI carries no client for Slurm's PMI-2; it loads the library that I_MPI_PMI_LIBRARY names
(Slurm MPI Users Guide). In a container that is the host's libpmi2.so, bound into the image with
what it needs. Without it each process is rank 0 of 1. Its own launcher needs nothing of this.""",
)
