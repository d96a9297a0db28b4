"""SHM001 and SHM002: ranks of one node in user namespaces of their own."""

from __future__ import annotations

from collections.abc import Iterator

from hpcenv.base.known import Known, Unknown, value_of
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Outlook, Rule, Severity
from hpcenv.compat.rules.words import called, evidence_of, loaded_mpi, of_mpis, read
from hpcenv.image.facts import Family, ImageFacts
from hpcenv.launch.model import Launch, Mend
from hpcenv.site.model import SiteProfile

_SUBJECT = "shared memory between containers"
_MENDED_IN = Version.parse("5")


def _apart(launch: Launch) -> bool:
    return launch.rootless and launch.ranks_per_node > 1


def _vader(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    loaded = loaded_mpi(site, image, launch)
    if loaded is None or not _apart(launch):
        return
    mpi, whose = loaded
    if value_of(mpi.family) is not Family.OPENMPI:
        return
    version = value_of(mpi.version)
    if version is not None and version >= _MENDED_IN:
        return
    if isinstance(mpi.transports, Known) and "vader" not in mpi.transports.value:
        return
    yield Finding(
        rule="SHM001",
        severity=Severity.WARNING,
        subject=_SUBJECT,
        says=(
            f"{called(mpi)} copies large messages straight from one process to another (vader), "
            "which user namespaces forbid: a message of some MB hangs"
        ),
        evidence=evidence_of(whose, mpi) + read("its transports", mpi.transports),
        remedy="export OMPI_MCA_btl_vader_single_copy_mechanism=none",
        predicts=Outlook.MAY_HANG,
        mend=Mend(env={"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}),
    )


SHM001 = Rule(
    id="SHM001",
    title="Open MPI 4 copies between user namespaces",
    reads=of_mpis("family", "version", "transports"),
    check=_vader,
    doc="""\
Where containers run without root, each rank gets a user namespace of its own, and the kernel lets
no process read another's memory across (process_vm_readv). Open MPI up to 4.1 (vader) tries to for
messages beyond a few kB, and hangs. Measured 2026-11: Open MPI 4.1.4, small messages pass, one of
20 MB hangs; 5.0.11 does not.

Remedies, each seen working: OMPI_MCA_btl_vader_single_copy_mechanism=none (which `hpcenv run`
sets), `apptainer exec --sharens`, or mpirun inside one container.""",
)


def _ucx(site: SiteProfile, image: ImageFacts, launch: Launch) -> Iterator[Finding]:
    loaded = loaded_mpi(site, image, launch)
    if loaded is None or not _apart(launch):
        return
    mpi, whose = loaded
    if isinstance(mpi.transports, Known) and "ucx" not in mpi.transports.value:
        return
    if isinstance(mpi.family, Unknown) or mpi.family.value is Family.INTEL:
        return  # another rule says that the first is unknown; the second has no UCX of its own
    yield Finding(
        rule="SHM002",
        severity=Severity.WARNING,
        subject=_SUBJECT,
        says=(
            f"the UCX of {called(mpi)} opens other ranks' files below /proc and copies from their "
            "memory (cma): user namespaces forbid both, and MPI_Init or a large message ends it"
        ),
        evidence=evidence_of(whose, mpi) + read("its transports", mpi.transports),
        remedy="export UCX_POSIX_USE_PROC_LINK=n UCX_TLS=^cma",
        predicts=Outlook.FAILS,
        mend=Mend(env={"UCX_POSIX_USE_PROC_LINK": "n", "UCX_TLS": "^cma"}),
    )


SHM002 = Rule(
    id="SHM002",
    title="UCX opens files of other user namespaces",
    reads=of_mpis("family", "transports"),
    check=_ucx,
    doc="""\
UCX's posix transport reaches another rank's shared memory through /proc/PID/fd, which the kernel
refuses between user namespaces (ucx#4224, ucx#8958, apptainer#769), and its cma transport copies
from that rank's memory, which the kernel refuses too. Measured 2026-11 under rootless apptainer:
MPICH 4.0.2 with UCX 1.13 ends in MPI_Init; with UCX_POSIX_USE_PROC_LINK=n it ends in the first
message of some MB, in uct_cma_ep_tx; with UCX_TLS=^cma besides, it works. Wheel mpich 4.3.2 works
and prints "UCX ERROR open(file_name=/proc/N/fd/M) failed: Permission denied". `hpcenv run` sets
both; another way, seen working, is `apptainer exec --sharens`.""",
)
