"""MPI001: the image's MPI understands the launcher."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcenv.base.known import Fact, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import called, evidence_of, image_mpi, missing, of_mpis, site_mpi
from hpcenv.compat.tables import table, within
from hpcenv.image.facts import Family, ImageFacts, Mpi
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile

_SUBJECT = "launcher and library"


@dataclass(frozen=True)
class _Pair:
    launcher: Family
    library: Family
    outlook: Outlook
    why: str
    source: str
    launcher_since: Version | None = None
    launcher_below: Version | None = None
    library_since: Version | None = None
    library_below: Version | None = None

    @property
    def bounded(self) -> tuple[bool, bool]:
        """Whether the launcher's and the library's version matter."""
        return (
            self.launcher_since is not None or self.launcher_below is not None,
            self.library_since is not None or self.library_below is not None,
        )


@dataclass(frozen=True)
class _Table:
    pair: tuple[_Pair, ...]


def alone(mpi: Mpi) -> Outlook:
    """Tell what an MPICH-like library does where a PMIx server, but none of PMI-1, is there."""
    found = _judge(Family.OPENMPI, _ANY_VERSION, mpi)
    return found.outlook if isinstance(found, _Pair) else Outlook.UNKNOWN


_ANY_VERSION = Unknown("any server", "srun --mpi=list")


def _judge(launcher: Family, version: Fact[Version], library: Mpi) -> _Pair | Unknown:
    """Return the row for a pair, or what is missing to choose one."""
    if isinstance(library.family, Unknown):
        return library.family
    rows = [
        row
        for row in table(_Table, "family").pair
        if row.launcher is launcher and row.library is library.family.value
    ]
    if any(row.bounded[1] for row in rows) and isinstance(library.version, Unknown):
        return library.version
    for row in rows:
        if row.bounded[1]:
            assert not isinstance(library.version, Unknown)
            if not within(library.version.value, row.library_since, row.library_below):
                continue
        if row.bounded[0]:
            if isinstance(version, Unknown):
                return version
            if not within(version.value, row.launcher_since, row.launcher_below):
                continue
        return row
    return Unknown(
        f"nobody has measured {called(library)} under a launcher of {launcher.product}",
        "hpcenv validate-mpi IMAGE on the site: the proof tells",
    )


def _check(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    host, mpi = site_mpi(site, launch), image_mpi(image)
    if launch.launcher != "mpirun" or launch.model != "hybrid" or host is None or mpi is None:
        return
    if isinstance(host.library.family, Unknown):
        yield missing("MPI001", _SUBJECT, f"the family of {host.name}", host.library.family)
        return
    if isinstance(mpi.family, Unknown):
        yield missing("MPI001", _SUBJECT, "the family of the image's MPI", mpi.family)
        return
    family = host.library.family.value
    if family is Family.OPENMPI and mpi.family.value is Family.OPENMPI:
        return
    row = _judge(family, host.library.version, mpi)
    if isinstance(row, Unknown):
        yield missing("MPI001", _SUBJECT, f"what {called(mpi)} does under {host.name}", row)
    elif row.outlook is not Outlook.WORKS:
        direct = _taken_for_direct(site, mpi, family, launch)
        why = _DIRECT if direct else row.why
        yield Finding(
            rule="MPI001",
            severity=Severity.ERROR,
            subject=_SUBJECT,
            says=f"{called(mpi)} under the launcher of {called(host.library)}: {why}",
            evidence=evidence_of("the image", mpi) + evidence_of("the site", host.library),
            remedy=_remedy(site, mpi.family.value, family),
            predicts=Outlook.FAILS if direct else row.outlook,
        )


_DIRECT = (
    "within an allocation Hydra starts its proxies by srun; the library takes itself for started "
    "by srun directly, finds no PMIx there, and ends in MPI_Init"
)


def _taken_for_direct(site: SiteProfile, library: Mpi, launcher: Family, launch: Launch) -> bool:
    """Whether Open MPI 4 under Hydra meets Slurm. Measured: Slurm 22.05, MPICH 4.0.2 and 4.1.4.

    On one node `hpcenv run` has Hydra start its ranks itself.
    """
    version = value_of(library.version)
    return (
        launch.nodes > 1
        and value_of(site.slurm) is not None
        and launcher.mpich_abi
        and value_of(library.family) is Family.OPENMPI
        and version is not None
        and version.major < 5
    )


def _remedy(site: SiteProfile, wanted: Family, launcher: Family) -> str:
    others = [] if isinstance(site.mpis, Unknown) else site.mpis.value
    for other in others:
        if not isinstance(other.library.family, Unknown) and other.library.family.value is wanted:
            return f"launch with the site's {wanted.product} ({other.name}), or build for this one"
    return f"use an image with {launcher.product}: hpcenv lock RECIPE --site SITE"


MPI001 = Rule(
    id="MPI001",
    title="The image's MPI understands the launcher",
    reads=of_mpis("family", "version"),
    check=_check,
    doc="""\
In the hybrid model the launcher is the host's and the library is the image's. They must speak the
same process-management interface: Open MPI's launcher serves PMIx, Hydra (of MPICH, Intel MPI,
MVAPICH) serves PMI-1. A library that finds no server of its kind does not complain: it takes
itself for the only process, and N processes become N worlds of one rank each, all of them
"rank 0 of 1", exit status 0. So a job can train N models that never exchange anything.

Remedy: an image whose MPI is of the launcher's family (`hpcenv lock RECIPE --site SITE` takes
care of it), the other launcher, or Slurm's `srun --mpi=` with a type that the library speaks.""",
    tables=("family",),
)
