"""What people report, each with the right answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.base.known import Known
from hpcenv.base.version import Version
from hpcenv.compat.model import Finding, Judged, Outlook, Severity
from hpcenv.compat.predict import judge
from hpcenv.compat.rules.abi import interface
from hpcenv.compat.rules.libc import too_new
from hpcenv.image.facts import Abi, ElfNeed, Family, Mpi
from tests.compat import facts as f


def finding(judged: Judged, rule: str) -> Finding:
    [found] = [each for each in judged.findings if each.rule == rule]
    return found


def rules(judged: Judged) -> set[str]:
    return {each.rule for each in judged.findings}


def test_open_mpi_4_under_a_pmix_5_server() -> None:
    """openpmix#3731, ompi#10307."""
    site = f.site(slurm="23.11.1", slurm_pmix="5.0.1", types="pmix pmix_v4 pmix_v5 pmi2 none")
    image = f.image(f.openmpi("4.1.5", f.pmix("3.2.3")))
    for kind in ("pmix", "pmix_v5"):
        judged = judge(site, image, f.srun(kind))
        assert judged.outlook is Outlook.FAILS
        assert "pmix_v4" in finding(judged, "PMIX001").remedy
    assert judge(site, image, f.srun("pmix_v4")).outlook is Outlook.WORKS
    host = f.openmpi("5.0.5", f.pmix("5.0.3"))
    judged = judge(f.site(host), image, f.mpirun())
    assert judged.outlook is Outlook.SINGLETONS
    assert finding(judged, "PMIX001").severity is Severity.ERROR


def test_security_plugins_that_do_not_overlap() -> None:
    """ompi#12571, openpmix#2573, openpmix#2898."""
    site = f.site(slurm="22.05.8", slurm_pmix="4.2.2")
    without = judge(
        site, f.image(f.openmpi("4.1.4", f.pmix("4.2.2", psec="native"))), f.srun("pmix")
    )
    found = finding(without, "PMIX002")
    assert found.predicts is Outlook.FAILS
    assert found.mend is not None and found.mend.env == {"PMIX_MCA_psec": "native"}
    assert "PMIX_MCA_psec=native" in found.remedy
    cannot = judge(site, f.image(f.openmpi("4.1.4", f.pmix("4.2.2", psec="none"))), f.srun("pmix"))
    assert cannot.outlook is Outlook.FAILS
    both = judge(site, f.image(f.DEBIAN_OPENMPI), f.srun("pmix"))
    assert "PMIX002" not in rules(both)


def test_a_data_store_in_files_is_avoided_under_srun() -> None:
    """singularity#5195, charliecloud#866."""
    site = f.site(slurm="22.05.8", slurm_pmix="4.2.2")
    found = finding(judge(site, f.image(f.DEBIAN_OPENMPI), f.srun("pmix")), "PMIX003")
    assert found.mend is not None and found.mend.env == {"PMIX_MCA_gds": "hash"}


@pytest.mark.parametrize(
    ("launcher", "library"),
    [(f.DEBIAN_OPENMPI, f.DEBIAN_MPICH), (f.DEBIAN_MPICH, f.DEBIAN_OPENMPI)],
)
def test_singletons_are_never_called_a_success(launcher: Mpi, library: Mpi) -> None:
    """singularity#4288, #165, #5706."""
    judged = judge(f.site(launcher, library), f.image(library), f.mpirun())
    assert judged.outlook is Outlook.SINGLETONS
    found = finding(judged, "MPI001")
    assert found.severity is Severity.ERROR
    assert found.evidence and "mpi1" in found.remedy  # the launcher that fits


@pytest.mark.parametrize(
    ("host", "image", "outlook"),
    [
        (1, 4, Outlook.FAILS),  # cp2k#4006
        (4, 1, Outlook.NEVER_RUN),
        (4, 4, Outlook.NEVER_RUN),
    ],
)
def test_mpichs_interface_may_grow_and_not_shrink(host: int, image: int, outlook: Outlook) -> None:
    site = f.site(f.mpich("4.2.0", abi=Abi(12, host, 0)))
    judged = judge(site, f.image(f.mpich("4.2.0", abi=Abi(12, image, 0))), f.bind())
    assert judged.outlook is outlook
    if outlook is Outlook.FAILS:
        assert "backward" in finding(judged, "ABI001").says


def test_the_interface_of_a_wheel_comes_from_its_release() -> None:
    """pmodels/mpich, maint/version.m4 of v4.3.2: 17:2:5, so libmpi.so.12.5.2."""
    found = interface(f.WHEEL_MPICH)
    assert isinstance(found, Known) and found.value == 5
    site = f.site(f.DEBIAN_MPICH)
    assert judge(site, f.image(f.WHEEL_MPICH), f.bind()).outlook is Outlook.FAILS
    assert judge(site, f.image(f.mpich("3.4.3")), f.bind()).outlook is Outlook.NEVER_RUN


def test_sonames_that_collide_do_not_deceive() -> None:
    """Open MPI 1.10's libmpi.so.12 is not MPICH's."""
    old = replace(f.openmpi("1.10.7"), soname="libmpi.so.12")
    judged = judge(f.site(f.DEBIAN_MPICH), f.image(old), f.bind())
    assert judged.outlook is Outlook.FAILS
    assert judge(f.site(f.DEBIAN_MPICH), f.image(old), f.mpirun()).outlook is Outlook.SINGLETONS


def test_numbers_that_are_not_mpichs_own_are_not_compared() -> None:
    """MVAPICH-Plus and development builds are libmpi.so.0.0.0; Intel's is always 12.0.0."""
    for other in (
        f.mpich("4.0", family=Family.MVAPICH, abi=Abi(0, 0, 0)),
        f.mpich("2021.19.0", family=Family.INTEL, abi=Abi(12, 0, 0)),
        f.mpich("4.4.0a1", abi=Abi(0, 0, 0)),
    ):
        judged = judge(f.site(other), f.image(f.DEBIAN_MPICH), f.bind())
        assert judged.outlook is Outlook.UNKNOWN
        assert finding(judged, "ABI001").remedy


@pytest.mark.parametrize(
    ("host", "image", "outlook"),
    [
        ("4.1.4", "4.0.3", Outlook.NEVER_RUN),
        ("5.0.5", "4.1.4", Outlook.NEVER_RUN),
        ("4.0.3", "4.1.4", Outlook.FAILS),
        ("4.1.4", "5.0.5", Outlook.FAILS),
        ("4.1.4", "2.1.6", Outlook.FAILS),
    ],
)
def test_open_mpi_replaces_older_ones_of_its_soname(
    host: str, image: str, outlook: Outlook
) -> None:
    """open-mpi/ompi, docs/version-numbering.rst and building-apps/abi-compatibility.rst."""
    judged = judge(f.site(f.openmpi(host)), f.image(f.openmpi(image)), f.bind())
    assert judged.outlook is outlook


@pytest.mark.parametrize(
    ("need", "libc", "fine"),
    [
        ("GLIBC_2.34", "2.31", False),  # apptainer#945, #598
        ("GLIBC_2.34", "2.34", True),
        ("GLIBC_2.34", "2.36", True),
        ("GLIBC_2.9", "2.31", True),  # 9 is less than 31
        ("GLIBC_ABI_DT_RELR", "2.35", False),  # apptainer#3041
        ("GLIBC_ABI_DT_RELR", "2.36", True),
        ("GLIBC_PRIVATE", "2.36", False),
    ],
)
def test_host_libraries_need_a_c_library_as_new(need: str, libc: str, fine: bool) -> None:
    site = f.site(f.DEBIAN_MPICH, needs=("GLIBC_2.4", need))
    judged = judge(site, f.image(f.DEBIAN_MPICH, libc=libc), f.bind())
    assert judged.outlook is (Outlook.NEVER_RUN if fine else Outlook.FAILS)
    if not fine:
        assert need in finding(judged, "LIBC001").says
    assert "LIBC001" not in rules(judge(site, f.image(f.DEBIAN_MPICH, libc=libc), f.mpirun()))


@pytest.mark.parametrize("library", [f.DEBIAN_MPICH, f.WHEEL_MPICH])
def test_ucx_between_user_namespaces_is_mended(library: Mpi) -> None:
    """ucx#4224, ucx#8958, apptainer#769."""
    judged = judge(f.site(f.DEBIAN_MPICH), f.image(library), f.mpirun(rootless=True))
    found = finding(judged, "SHM002")
    assert found.mend is not None and found.mend.env == {
        "UCX_POSIX_USE_PROC_LINK": "n",
        "UCX_TLS": "^cma",
    }
    assert judged.outlook is Outlook.WORKS


def test_intel_mpi_and_open_mpi_5_under_pmi2() -> None:
    site = f.site(slurm="22.05.8", types="pmi2 none")
    old = f.mpich("2019.9.304", family=Family.INTEL, pmi="pmi1 pmi2", transports="ofi")
    judged = judge(site, f.image(old), f.srun("pmi2"))
    assert judged.outlook is Outlook.SINGLETONS
    assert "I_MPI_PMI_LIBRARY" in finding(judged, "PMI001").remedy
    judged = judge(site, f.image(f.WHEEL_OPENMPI5), f.srun("pmi2"))
    assert judged.outlook is Outlook.FAILS
    found = finding(judged, "PMI001")
    assert "speaks pmix" in found.says and "image" in found.remedy  # no type of this site fits


def test_the_fitting_type_is_named() -> None:
    site = f.site(slurm="22.05.8", slurm_pmix="4.2.2", types="pmix pmi2 none")
    judged = judge(site, f.image(f.DEBIAN_OPENMPI), f.srun("pmi2"))
    found = finding(judged, "PMI001")
    assert found.remedy == "use srun --mpi=pmix"
    assert found.mend is not None and found.mend.use == f.srun("pmix")
    assert judge(site, f.image(f.DEBIAN_MPICH), f.srun("pmi2")).outlook is Outlook.WORKS


def test_open_mpi_with_slurms_pmi2_component() -> None:
    site = f.site(slurm="20.02.6", types="pmi2 none")
    image = f.image(f.openmpi("4.0.3", pmi="pmix pmi2"))
    assert judge(site, image, f.srun("pmi2")).outlook is Outlook.WORKS


@pytest.mark.parametrize(
    ("built", "there", "bad"),
    [("2.15.0", "2.18.1", True), ("2.18.1", "2.18.1", False), ("2.18.0", "2.18.1", False)],
)
def test_horovod_built_for_another_tensorflow(built: str, there: str, bad: bool) -> None:
    """horovod#4039, #2619, #656."""
    image = f.image(f.DEBIAN_OPENMPI, tensorflow=there, horovod_for=built)
    judged = judge(f.site(f.DEBIAN_OPENMPI), image, f.mpirun())
    assert ("HVD001" in rules(judged)) == bad
    assert judged.outlook is Outlook.WORKS  # MPI itself starts


def test_horovod_without_mpi_is_named() -> None:
    image = f.image(f.DEBIAN_OPENMPI, tensorflow="2.18.1", horovod_for="2.18.1", controllers="gloo")
    assert "HVD002" in rules(judge(f.site(f.DEBIAN_OPENMPI), image, f.mpirun()))


def test_another_architecture_does_not_start() -> None:
    image = f.image(f.DEBIAN_OPENMPI, arch="aarch64")
    assert judge(f.site(f.DEBIAN_OPENMPI), image, f.mpirun()).outlook is Outlook.FAILS


def test_slurm_releases_that_broke_pmix() -> None:
    """Slurm's CHANGELOG for 25.05.4 and 25.11.2."""
    image = f.image(f.openmpi("4.0.3", f.pmix("3.0.2")))
    broken = f.site(slurm="25.05.3", slurm_pmix="4.2.2")
    mended = f.site(slurm="25.05.4", slurm_pmix="4.2.2")
    assert judge(broken, image, f.srun("pmix")).outlook is Outlook.FAILS
    assert judge(mended, image, f.srun("pmix")).outlook is Outlook.WORKS
    image = f.image(f.openmpi("5.0.9", f.pmix("5.0.9")))
    assert judge(f.site(slurm="25.05.4", slurm_pmix="5.0.9"), image, f.srun("pmix")).outlook is (
        Outlook.MAY_HANG
    )
    assert judge(f.site(slurm="25.11.2", slurm_pmix="5.0.9"), image, f.srun("pmix")).outlook is (
        Outlook.WORKS
    )


def test_pmix_before_it_crossed_series() -> None:
    """Open MPI's PMIx compatibility matrix: 1.2.4 is before 1.2.5, 2.1.0 before 2.1.1."""
    host = f.openmpi("4.1.4", f.pmix("4.2.2"))
    for old in ("1.2.4", "2.0.2", "2.1.0"):
        judged = judge(f.site(host), f.image(f.openmpi("3.1.0", f.pmix(old))), f.mpirun())
        assert judged.outlook is Outlook.FAILS, old
    for new in ("1.2.5", "2.0.3", "2.1.1", "3.0.0"):
        judged = judge(f.site(host), f.image(f.openmpi("3.1.6", f.pmix(new))), f.mpirun())
        assert judged.outlook is Outlook.WORKS, new


_NUMBERS = st.tuples(st.integers(0, 9), st.integers(0, 60))


@given(need=_NUMBERS, libc=_NUMBERS)
def test_versions_are_compared_as_numbers(need: tuple[int, int], libc: tuple[int, int]) -> None:
    """e4s-cl compared 2.35.1 with 2.35 as text."""
    wanted = ElfNeed("x", "libc.so.6", f"GLIBC_{need[0]}.{need[1]}")
    assert (too_new(wanted, Version.parse(f"{libc[0]}.{libc[1]}")) is None) == (libc >= need)
