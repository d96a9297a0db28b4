"""The runtime on real ranks, inside the default image."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.ranks_inside import Inside
from tests.runtime.trees import assert_same, make_tree

pytestmark = [pytest.mark.image, pytest.mark.mpi]

DATA = os.environ.get("HPCENV_TEST_DIGITS", "/usr/share/hpcenv/data/digits")
HERE = f"data.folder={DATA}"


def result_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def train(inside: Inside, ranks: int, name: str, *changes: str, status: int = 0) -> str:
    sets = [word for change in (HERE, *changes) for word in ("--set", change)]
    done = inside.run(
        ranks, "hpcenv-train", "run", "digits", "-o", inside.folder / name, *sets, status=status
    )
    return done.stdout + done.stderr


# -- gradients are exchanged ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "ranks", "samples"),
    [("horovod", 2, 16), ("horovod", 3, 20), ("mpi4py", 2, 13), ("mpi4py", 3, 24)],
)
def test_the_first_step_is_the_mean_gradient_step(
    inside: Inside, collective: str, ranks: int, samples: int
) -> None:
    said = json.loads(inside.script(ranks, "check_first_step.py", collective, str(samples))
                      .splitlines()[0])  # fmt: skip
    assert said["size"] == ranks
    assert said["error"] < 2e-6 < 0.01 < said["alone"]


def test_one_rank_alone_takes_the_same_step(inside: Inside) -> None:
    said = inside.script(1, "check_first_step.py", "single", "8")
    assert json.loads(said.splitlines()[0])["error"] < 2e-6


def test_optimizers_agree_with_keras(inside: Inside) -> None:
    assert inside.script(1, "check_keras_peer.py").split()[0] == "Sgd"


def test_a_rank_that_drifts_is_named(inside: Inside) -> None:
    said = inside.script(3, "check_drift.py", inside.folder / "run", HERE, status=1)
    assert re.search(r"after step 10, the weights of rank 1 on \S+ differ", said)
    assert "Traceback" not in said
    assert said.count("differ from those") == 1


# -- a whole run ----------------------------------------------------------------------------------


def test_digits_are_learnt_on_two_ranks(inside: Inside) -> None:
    said = train(inside, 2, "run")
    result = result_of(inside.folder / "run")
    assert result["accuracy"] >= 0.95
    assert result["accuracy"] == result["correct"] / result["held_out"]
    assert (result["ranks"], result["collective"], result["seen"]) == (2, "horovod", 24_000)
    assert result["bytes_read"] == result["bytes_staged"] > 1_000_000
    assert 0 < result["exchange"]["error"] < 1e-5 < result["exchange"]["spread"]
    assert f"{result['accuracy']:.1%}" in said
    inside.script(1, "check_result.py", inside.folder / "run", DATA)

    lines = [json.loads(each) for each in (inside.folder / "run/log.jsonl").open()]
    assert lines[-1]["event"] == "finished"
    assert {k: v for k, v in lines[-1].items() if k in result} == result
    steps = [line for line in lines if line["event"] == "step"]
    assert [line["step"] for line in steps] == list(range(20, 379, 20))
    assert steps[0]["loss"] > steps[-1]["loss"]
    weights = next(line for line in lines if line["event"] == "weights")
    assert (weights["distinct_before"], weights["distinct"]) == (2, 1)

    # Again: it says so, at once, and changes nothing.
    before = (inside.folder / "run/result.json").read_bytes()
    assert "finished; --fresh trains anew" in train(inside, 2, "run")
    assert (inside.folder / "run/result.json").read_bytes() == before
    report = inside.run(1, "hpcenv-train", "report", "--json", inside.folder / "run")
    assert json.loads(report.stdout)["result"] == result


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (3, ["collective=mpi4py", "precision=mixed_bfloat16"]),
        (3, ["optimizer={kind='adam'}", "learning_rate.base=0.001", "precision=mixed_bfloat16"]),
        (1, ["collective=single", "model=mlp", "learning_rate.base=0.05"]),
    ],
)
def test_other_ways_of_learning(inside: Inside, ranks: int, changes: list[str]) -> None:
    train(inside, ranks, "run", "epochs=4", *changes)
    assert result_of(inside.folder / "run")["accuracy"] >= 0.9
    inside.script(1, "check_result.py", inside.folder / "run", DATA)


EXACT = ["deterministic=true", "epochs=8", "every.checkpoint=70", "model=mlp"]


def wait_for(file: Path, word: str, process: Any) -> None:
    deadline = time.monotonic() + 300
    while not (file.exists() and word in file.read_text()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_that_was_stopped_ends_as_one_that_was_not(inside: Inside) -> None:
    train(inside, 2, "whole", *EXACT)
    sets = [word for change in (HERE, *EXACT) for word in ("--set", change)]
    words = ("hpcenv-train", "run", "digits", "-o", inside.folder / "parts", *sets)
    log = inside.folder / "parts/log.jsonl"

    process = inside.start(2, *words)
    wait_for(log, '"event": "step"', process)
    process.send_signal(signal.SIGUSR1)  # to the launcher, which hands it on
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 75, said
    assert "asked to stop: saved after step" in said
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"

    process = inside.start(2, *words)  # and now a death without warning
    wait_for(log, '"event": "checkpoint", "step": 280', process)
    process.kill()
    process.communicate(timeout=60)

    said = train(inside, 2, "parts", *EXACT)
    assert "goes on after" in said
    whole, parts = result_of(inside.folder / "whole"), result_of(inside.folder / "parts")
    assert parts["resumed_from"] > 0
    assert whole["weights_sha256"] == parts["weights_sha256"]
    assert (whole["correct"], whole["steps"]) == (parts["correct"], parts["steps"])


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "how", "status", "says"),
    [
        ("horovod", "disk", 3, r"check: rank 1 on \S+: /data/7: the disk is gone"),
        ("mpi4py", "defect", 70, r"check: rank 1 on \S+: a defect of this program"),
        ("horovod", "killed", 137, r"signal 9"),
    ],
)
def test_all_ranks_end_when_one_fails(
    inside: Inside, collective: str, how: str, status: int, says: str
) -> None:
    began = time.monotonic()
    said = inside.script(
        2, "check_one_fails.py", inside.folder / "run", how, HERE, f"collective={collective}",
        status=status,
    )  # fmt: skip
    assert re.search(says, said, re.IGNORECASE)
    assert time.monotonic() - began < 150
    assert ("Traceback" in said) == (how == "defect")


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        (["epohs=3"], 2, "epohs: unknown key; did you mean 'epochs'?"),
        (["collective=single"], 2, "collective 'single' is for one rank, and 2 were started"),
        (["data.folder=/nix"], 2, "/nix: there is no mnist_5k.csv.gz"),
    ],
)
def test_bad_input_is_told_once(inside: Inside, changes: list[str], status: int, says: str) -> None:
    said = train(inside, 2, "run", *changes, status=status)
    assert said.count(says) == 1
    assert "Traceback" not in said
    assert not (inside.folder / "run").exists()


def test_describe(inside: Inside) -> None:
    said = json.loads(inside.run(1, "hpcenv-train", "describe").stdout)
    assert said["schema"] == 1
    assert set(said["collectives"]) == {"horovod", "mpi4py", "single"}
    assert said["versions"]["horovod"].startswith("0.28.1")
    assert "digits" in said["settings"]
    assert said["mpi_library"]


# -- staging --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 3)])
def test_every_node_gets_a_copy_and_every_byte_is_read_once(
    inside: Inside, ranks: int, nodes: int
) -> None:
    source = inside.folder / "source"
    size = make_tree(source, mib=5)
    words = (source, inside.folder / "node", str(nodes), "65536")
    copied = json.loads(inside.script(ranks, "check_stage.py", *words))
    assert copied["bytes_read"] == copied["bytes"] == size
    assert (copied["ranks"], copied["nodes"]) == (ranks, nodes)
    for node in range(nodes):
        assert_same(source, inside.folder / f"node{node}")
    assert not list(inside.folder.glob(".node*"))
    assert json.loads(inside.script(ranks, "check_stage.py", *words))["bytes_read"] == 0


def test_a_rank_that_cannot_read_ends_all_and_is_named(inside: Inside) -> None:
    # Files of sysfs say 4096 bytes and hold a few: a read that comes up short.
    words = ("/sys/kernel/mm/transparent_hugepage", inside.folder / "node", "2", "65536")
    said = inside.script(3, "check_stage.py", *words, status=3)
    assert re.search(r"rank \d on node\d: /sys/kernel\S+: it was changed while", said)
    assert "Traceback" not in said
    assert not list(inside.folder.glob("node*"))


def test_ranks_of_a_node_must_agree_on_the_folder(inside: Inside) -> None:
    (inside.folder / "source").mkdir()
    script = "import os, sys; from mpi4py import MPI; " \
        "from hpcenv.runtime.stage.cli import main; " \
        "sys.exit(main(['copy', 'source', f'to{MPI.COMM_WORLD.rank}']))"  # fmt: skip
    done = inside.run(2, "python3", "-c", script, status=2)
    assert (done.stdout + done.stderr).count("want the copy in different folders") == 1
