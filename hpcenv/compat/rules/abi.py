"""ABI001 and ABI002: the host's MPI library in the place of the image's (the bind model)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcenv.base.known import Fact, Known, Unknown
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import (
    called,
    evidence_of,
    image_mpi,
    missing,
    of_mpis,
    read,
    site_mpi,
)
from hpcenv.compat.tables import table
from hpcenv.image.facts import Family, ImageFacts, Mpi
from hpcenv.launch.model import Launch
from hpcenv.site.model import SiteProfile

_SUBJECT = "the host's library in the image's place"


@dataclass(frozen=True)
class _Series:
    series: str
    minor: int
    source: str


@dataclass(frozen=True)
class _Table:
    mpich: tuple[_Series, ...]


def interface(mpi: Mpi) -> Fact[int]:
    """Return y of ``libmpi.so.12.y``: a larger one has all that a smaller one has.

    Only MPICH's own numbers mean that: Intel's, Cray's and MVAPICH's files are numbered otherwise,
    and development builds are 0.0.0.
    """
    if isinstance(mpi.family, Unknown):
        return mpi.family
    if mpi.family.value is not Family.MPICH:
        return Unknown(
            f"{called(mpi)} does not number its library as MPICH does",
            "the MPICH release that it is built on; its release notes say so",
        )
    if isinstance(mpi.abi, Known) and mpi.abi.value.major == 12:
        return Known(mpi.abi.value.minor, mpi.abi.how, mpi.abi.where)
    if isinstance(mpi.version, Unknown):
        return mpi.version
    series = f"{mpi.version.value.major}.{mpi.version.value.minor}"
    for row in table(_Table, "abi").mpich:
        if row.series == series:
            return Known(row.minor, "published", row.source)
    return Unknown(f"MPICH {series} is not in the table", "ls -l libmpi.so.12*: the real file")


def _check(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    host, mpi = site_mpi(site, launch), image_mpi(image)
    if launch.model != "bind" or host is None or mpi is None:
        return
    for what, fact in ((host.name, host.library.family), ("the image's MPI", mpi.family)):
        if isinstance(fact, Unknown):
            yield missing("ABI001", _SUBJECT, f"the family of {what}", fact)
            return
    assert isinstance(host.library.family, Known) and isinstance(mpi.family, Known)
    if host.library.family.value.mpich_abi != mpi.family.value.mpich_abi:
        yield _refusal(
            host.library,
            mpi,
            f"programs of the image need {mpi.soname}; {called(host.library)} is another interface",
            "take an image with the site's MPI: hpcenv lock RECIPE --site SITE",
        )
    elif mpi.family.value is Family.OPENMPI:
        yield from _openmpi(host.library, mpi)
    else:
        yield from _mpich(host.library, mpi)


def _openmpi(host: Mpi, mpi: Mpi) -> Iterator[Finding]:
    for what, fact in (("the site's", host.version), ("the image's", mpi.version)):
        if isinstance(fact, Unknown):
            yield missing("ABI001", _SUBJECT, f"{what} Open MPI version", fact)
            return
    assert isinstance(host.version, Known) and isinstance(mpi.version, Known)
    old, new = mpi.version.value, host.version.value
    if _openmpi_soname(old) != _openmpi_soname(new):
        why = f"Open MPI {old} and {new} have different sonames"
    elif (new.major, new.minor) < (old.major, old.minor):
        why = f"Open MPI {new} is older than the image's {old}: functions may be missing"
    else:
        return
    yield _refusal(host, mpi, why, f"take an image with Open MPI {new} or older of its series")


def _openmpi_soname(version: Version) -> int:
    """Return N of ``libmpi.so.N`` (open-mpi/ompi, file VERSION of each release)."""
    if version.major >= 3:
        return 40
    return 20 if version.major == 2 else 12 if version >= Version.parse("1.7") else 0


def _mpich(host: Mpi, mpi: Mpi) -> Iterator[Finding]:
    theirs, ours = interface(host), interface(mpi)
    for what, fact in (("the site's", theirs), ("the image's", ours)):
        if isinstance(fact, Unknown):
            yield missing("ABI001", _SUBJECT, f"{what} MPICH interface", fact)
    if isinstance(theirs, Unknown) or isinstance(ours, Unknown):
        return
    if theirs.value < ours.value:
        yield _refusal(
            host,
            mpi,
            f"backward replacement: the host's libmpi.so.12.{theirs.value} lacks what programs "
            f"built for the image's 12.{ours.value} may call",
            f"take an image with MPICH of interface 12.{theirs.value} or less, or launch hybrid",
            read("the host's interface", theirs) + read("the image's interface", ours),
        )


def _refusal(
    host: Mpi, mpi: Mpi, says: str, remedy: str, more: tuple[Known[str], ...] = ()
) -> Finding:
    return Finding(
        rule="ABI001",
        severity=Severity.ERROR,
        subject=_SUBJECT,
        says=says,
        evidence=evidence_of("the site", host) + evidence_of("the image", mpi) + more,
        remedy=remedy,
        predicts=Outlook.FAILS,
    )


ABI001 = Rule(
    id="ABI001",
    title="The host's MPI library can stand in the image's place",
    reads=of_mpis("family", "version", "abi"),
    check=_check,
    doc="""\
In the bind model the host's libmpi takes the place of the one that the image's programs were
linked to, so it must offer the same interface. Members of the MPICH ABI initiative (MPICH since
3.1, Intel MPI, Cray MPICH, MVAPICH) share libmpi.so.12; replacing 12.x by 12.y is safe if y is not
smaller (forward), and unsafe otherwise (backward: a function may be missing). Open MPI has
libmpi.so.40 from 3.0 to 5.0, each release able to replace an older one; its interface and MPICH's
have nothing in common, whatever the sonames are (Open MPI 1.10's is libmpi.so.12).

Sources: the ABI initiative's page in MPICH's repository; Open MPI's documentation on ABI
compatibility; the direction rule is that of the Sarus documentation.""",
    tables=("abi",),
)


def _unproved(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    if launch.model == "bind":
        yield Finding(
            rule="ABI002",
            severity=Severity.INFO,
            subject=_SUBJECT,
            says="the bind model is judged from files alone: nobody has run it here",
            evidence=(),
            remedy="prefer a hybrid launch where one works",
            predicts=Outlook.NEVER_RUN,
        )


ABI002 = Rule(
    id="ABI002",
    title="The bind model is expected, never run",
    reads=frozenset(),
    check=_unproved,
    doc="""\
`hpcenv run` and the proof start hybrid launches only. For the bind model hpcenv tells what files
tell: interface, C library, architecture. What it cannot tell from files is whether the host's
library finds its plug-ins and its fabric inside the image. So its best outlook is "expected,
never run".""",
)
