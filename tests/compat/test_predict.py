"""Verdicts, the registry, the tables and their pages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import hpcenv.compat.rules
from hpcenv.compat.model import Outlook
from hpcenv.compat.pages import sources
from hpcenv.compat.predict import predict
from hpcenv.compat.registry import RULES
from hpcenv.launch.offers import offers
from tests.compat import facts as f

HPCENV = Path(sys.executable).with_name("hpcenv")


def test_the_best_launch_comes_first_and_is_the_verdict() -> None:
    site = f.site(f.DEBIAN_OPENMPI, f.DEBIAN_MPICH, slurm="22.05.8", slurm_pmix="4.2.2")
    image = f.image(f.DEBIAN_MPICH)
    verdict = predict(site, image, offers(site, image, 1, 2))
    ranks = [judged.outlook.rank for judged in verdict.launches]
    assert ranks == sorted(ranks)
    first, second = verdict.launches[:2]
    assert (first.launch.mpi, first.launch.launcher) == ("mpi1", "mpirun")
    assert second.launch.mpi_type == "pmi2"
    assert verdict.outlook is Outlook.WORKS
    assert verdict.launches[-1].outlook is Outlook.FAILS


def test_a_mend_that_is_another_launch_leaves_this_one_as_it_is() -> None:
    site = f.site(slurm="22.05.8", slurm_pmix="4.2.2")
    verdict = predict(site, f.image(f.DEBIAN_OPENMPI), [f.srun("pmi2")])
    [judged] = verdict.launches
    [found] = [each for each in judged.findings if each.mend and each.mend.use]
    assert judged.outlook is found.predicts is Outlook.FAILS


def test_a_site_of_which_nothing_is_known_is_unknown_not_hopeless() -> None:
    site = f.site()
    site = replace(site, mpis=f.UNKNOWN, slurm=f.UNKNOWN)
    image = f.image(f.DEBIAN_OPENMPI)
    verdict = predict(site, image, offers(site, image, 1, 2))
    assert verdict.outlook is Outlook.UNKNOWN


def test_rules_have_ids_of_their_own_and_reasons() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    for rule in RULES:
        assert rule.title and len(rule.doc) > 100


def test_every_row_of_every_table_names_its_source() -> None:
    [folder] = hpcenv.compat.rules.__path__
    tables = sorted(Path(folder).glob("*.toml"))
    assert {file.stem for file in tables} == {name for rule in RULES for name in rule.tables}
    for file in tables:
        for name, rows in tomllib.loads(file.read_text()).items():
            for row in rows:
                assert len(row["source"]) > 8, (file.name, name, row)
    assert all(sources(rule) for rule in RULES if rule.tables)


def explain(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HPCENV, "explain", *words], capture_output=True, text=True)


@pytest.mark.parametrize("rule", [rule.id for rule in RULES if rule.tables])
def test_explain_prints_reason_and_sources(rule: str) -> None:
    done = explain(rule.lower())
    assert done.returncode == 0 and not done.stderr
    [entry] = [each for each in RULES if each.id == rule]
    assert entry.doc in done.stdout
    for source in sources(entry):
        assert source in done.stdout


def test_explain_names_the_nearest_rule() -> None:
    done = explain("MPI01")
    assert done.returncode == 2
    assert "did you mean MPI001?" in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout


def test_explain_lists_the_rules() -> None:
    done = explain()
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [rule.id for rule in RULES]
