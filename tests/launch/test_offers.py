"""Which launches a site offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpcenv.image.facts import Pmi
from hpcenv.launch.offers import offers, srun_types
from tests.compat import facts as f


def test_each_mpirun_and_each_type_of_srun_in_both_models() -> None:
    site = f.site(f.DEBIAN_OPENMPI, f.DEBIAN_MPICH, slurm="22.05.8", types="pmix pmi2 none")
    rows = offers(site, f.image(f.DEBIAN_MPICH), 2, 4)
    told = [(row.launcher, row.model, row.mpi, row.mpi_type) for row in rows]
    assert told == [
        ("mpirun", "hybrid", "mpi0", None),
        ("mpirun", "hybrid", "mpi1", None),
        ("srun", "hybrid", None, "pmix"),
        ("srun", "hybrid", None, "pmi2"),
        ("srun", "hybrid", None, "none"),
        ("mpirun", "bind", "mpi0", None),
        ("mpirun", "bind", "mpi1", None),
        ("srun", "bind", "mpi1", "pmix"),
        ("srun", "bind", "mpi1", "pmi2"),
        ("srun", "bind", "mpi1", "none"),
    ]
    assert all(row.ranks == 8 for row in rows)
    assert [row.pmi for row in rows[2:5]] == [Pmi.PMIX, Pmi.PMI2, None]


@pytest.mark.parametrize(
    ("offered", "shown"),
    [
        ("pmix pmix_v4 pmi2 none", ("pmix", "pmi2", "none")),
        ("pmix pmix_v3 pmix_v4 none", ("pmix", "pmix_v3", "pmix_v4", "none")),
        ("pmix_v5 none", ("pmix_v5", "none")),
        ("cray_shasta none", ("cray_shasta", "none")),
    ],
)
def test_versions_of_pmix_are_shown_where_there_is_a_choice(
    offered: str, shown: tuple[str, ...]
) -> None:
    assert srun_types(f.site(slurm="23.02", types=offered)) == shown


@pytest.mark.parametrize(("privileged", "rootless"), [(True, False), (False, True), (None, True)])
def test_ranks_are_taken_to_be_apart_unless_they_are_known_not_to_be(
    privileged: bool | None, rootless: bool
) -> None:
    site = f.site(f.DEBIAN_OPENMPI)
    site = replace(site, privileged=f.UNKNOWN if privileged is None else f.known(privileged))
    assert {row.rootless for row in offers(site, f.image(), 1, 2)} == {rootless}


def test_no_slurm_no_srun() -> None:
    rows = offers(f.site(f.DEBIAN_OPENMPI), f.image(f.DEBIAN_OPENMPI), 1, 2)
    assert {row.launcher for row in rows} == {"mpirun"}
