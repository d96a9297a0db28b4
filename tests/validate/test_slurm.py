"""Launches by srun and mpirun over two nodes of a Slurm of our own: predicted beside seen."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from slurm import missing, slurm

from hpcenv.base.schema import schema
from hpcenv.validate.report import Report

pytestmark = [
    pytest.mark.scheduler,
    pytest.mark.mpi,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]

HPCENV = Path(sys.executable).with_name("hpcenv")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Mapping[str, str]]:
    with slurm() as env:
        yield env


def allocated(
    env: Mapping[str, str], *words: str | Path, status: int = 0
) -> subprocess.CompletedProcess[str]:
    argv = ["salloc", "-N", "2", "-n", "2", HPCENV, *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, f"{argv}\n{done.stdout}{done.stderr}"
    return done


def table(made: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        row["launch"].get("mpi_type") or row["launch"]["mpi"]: (
            row["predicted"],
            row["seen"].get("outlook"),
        )
        for row in made["rows"]
        if row["launch"]["model"] == "hybrid"
    }


def proved(env: Mapping[str, str], image: Path) -> Mapping[str, Any]:
    done = allocated(env, "validate-mpi", image, "-n", "2", "-N", "2", "--json")
    made: Mapping[str, Any] = json.loads(done.stdout)
    jsonschema.validate(made, schema(Report, "validate-mpi"))
    return made


WORKS, ALONE, FAILS = ("works",) * 2, ("singletons",) * 2, ("fails at start",) * 2


def test_open_mpi_works_by_pmix_and_fails_loudly_without(
    cluster: Mapping[str, str], mpi_base_openmpi: Path
) -> None:
    made = proved(cluster, mpi_base_openmpi)
    seen = table(made)
    assert seen["pmix"] == WORKS
    assert seen["pmi2"] == FAILS
    assert seen["none"] == FAILS
    assert seen["openmpi"] == WORKS
    assert seen["mpich"] == FAILS  # Hydra starts its proxies by srun, which Open MPI notices
    hosts = {
        rank["host"]
        for row in made["rows"]
        if row["launch"].get("mpi_type") == "pmix" and row["launch"]["model"] == "hybrid"
        for rank in row["seen"]["ranks"]
    }
    assert hosts == {"n1", "n2"}


def test_on_one_node_hydra_goes_without_srun(
    cluster: Mapping[str, str], mpi_base_openmpi: Path
) -> None:
    words = ["validate-mpi", mpi_base_openmpi, "-n", "2", "--launcher", "mpich", "--json"]
    assert table(json.loads(allocated(cluster, *words, status=1).stdout)) == {"mpich": ALONE}


def test_mpich_works_by_pmi2_and_is_alone_without(
    cluster: Mapping[str, str], mpi_base_mpich: Path
) -> None:
    seen = table(proved(cluster, mpi_base_mpich))
    assert seen["pmi2"] == WORKS
    assert seen["pmix"] == ALONE
    assert seen["none"] == ALONE
    assert seen["mpich"] == WORKS
    assert seen["openmpi"] == ALONE


def test_srun_is_not_asked_for_nodes_outside_an_allocation_unless_allowed(
    cluster: Mapping[str, str], mpi_base_mpich: Path
) -> None:
    words = ["validate-mpi", str(mpi_base_mpich), "-N", "2", "--launcher", "pmi2", "--json"]
    for extra, outlook in ([], None), (["--queue"], "works"):
        done = subprocess.run(
            [HPCENV, *words, *extra], env=cluster, capture_output=True, text=True, timeout=300
        )
        hybrid = [r for r in json.loads(done.stdout)["rows"] if r["launch"]["model"] == "hybrid"]
        assert [row["seen"].get("outlook") for row in hybrid] == [outlook], done.stderr
        assert "allocation" in hybrid[0]["seen"]["says"] or outlook


def test_run_takes_the_launch_that_works(
    cluster: Mapping[str, str], mpi_base_openmpi: Path, mpi_base_mpich: Path
) -> None:
    for image, kind in (mpi_base_openmpi, "pmix"), (mpi_base_mpich, "pmi2"):
        words = ["run", image, "-n", "2", "-N", "2", "--launcher", "srun"]
        line = allocated(cluster, *words, "--dry-run", "--", "true").stdout
        assert f"srun -N 2 -n 2 --ntasks-per-node=1 --mpi={kind} " in line
        shown = ["sh", "-c", "echo $SLURM_PROCID on $SLURMD_NODENAME"]
        done = allocated(cluster, *words, "--", *shown)
        assert sorted(done.stdout.split("\n")[:2]) == ["0 on n1", "1 on n2"]


def test_a_proof_that_is_stopped_cancels_its_step(
    cluster: Mapping[str, str], mpi_base_openmpi: Path, tmp_path: Path
) -> None:
    """A rank on one of the two nodes cannot come: the deadline ends it, and Slurm has no step."""
    drain = ["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test"]
    subprocess.run(drain, env=cluster, check=True)
    try:
        words = ["validate-mpi", mpi_base_openmpi, "-N", "2", "--launcher", "pmix", "--queue"]
        argv = [HPCENV, *words, "--deadline", "5", "--json"]
        began = time.monotonic()
        done = subprocess.run(argv, env=cluster, capture_output=True, text=True, timeout=120)
        assert time.monotonic() - began < 60
        assert done.returncode == 1
        row = next(r for r in json.loads(done.stdout)["rows"] if r["launch"]["model"] == "hybrid")
        assert row["seen"].get("outlook") == "may hang"
        for number in (0, 1):
            assert f"rank {number} never came" in row["seen"]["says"]
        left = subprocess.run(["squeue", "-h"], env=cluster, capture_output=True, text=True)
        assert left.stdout == ""
    finally:
        resume = ["scontrol", "update", "NodeName=n2", "State=RESUME"]
        subprocess.run(resume, env=cluster, check=True)
