"""Checkpoints: whole or not there, also for whoever is killed while writing one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcenv.base.errors import BadInput
from hpcenv.runtime.train import checkpoint, folder, log
from hpcenv.runtime.train.settings import load_settings

ARRAYS = [np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((), np.float32)]


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 640, 10, 2, ARRAYS)
    found = checkpoint.newest(tmp_path, pytest.fail)
    assert found is not None
    assert (found.state.seen, found.state.steps, found.state.ranks) == (640, 10, 2)
    for one, other in zip(found.arrays, ARRAYS, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for seen in (9, 10, 100, 1000):
        checkpoint.save(tmp_path, seen, 1, 1, ARRAYS)
    assert [f.name for f in sorted(tmp_path.iterdir())] == [
        "seen-000000000000100.npz",
        "seen-000000000001000.npz",
    ]


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "other"])
def test_a_damaged_one_is_told_and_passed_over(tmp_path: Path, harm: str) -> None:
    checkpoint.save(tmp_path, 1, 1, 1, ARRAYS)
    file = checkpoint.save(tmp_path, 2, 2, 1, ARRAYS)
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[data.index(ARRAYS[0].tobytes())] ^= 1
    file.write_bytes({"cut": data[:-9], "flip": data, "empty": b"", "other": b"x" * 99}[harm])
    told: list[str] = []
    found = checkpoint.newest(tmp_path, told.append)
    assert found is not None and found.state.seen == 1
    assert len(told) == 1 and str(file) in told[0] and "damaged" in told[0]


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path, pytest.fail) is None
    assert checkpoint.newest(tmp_path / "nix", pytest.fail) is None


WRITER = """
import sys
from pathlib import Path
import numpy as np
from hpcenv.runtime.train import checkpoint
where, begin = Path(sys.argv[1]), int(sys.argv[2])
for seen in range(begin, begin + 10**6):
    checkpoint.save(where, seen, seen, 1, [np.full(200_000, seen, np.float32)])
    print(seen, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_one(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print("seed", seed)
    chance = random.Random(seed)
    saved = 0
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(saved + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        saved = int(writer.stdout.readline())  # from here on there is one
        time.sleep(chance.uniform(0, 0.05))  # the moment is what varies
        writer.send_signal(signal.SIGKILL)
        saved = max([saved, *map(int, writer.communicate()[0].split())])
        found = checkpoint.newest(tmp_path, pytest.fail)
        assert found is not None
        # The last one that was told, or one more that was published before it could be told.
        assert found.state.seen in (saved, saved + 1)
        assert (found.arrays[0] == found.state.seen).all()
        saved = found.state.seen
    checkpoint.save(tmp_path, saved + 1, 1, 1, ARRAYS)
    assert len(list(tmp_path.iterdir())) == checkpoint.KEEP  # the killed ones' remains are gone


def test_a_cut_line_of_the_log_harms_no_other(tmp_path: Path) -> None:
    first = log.Log(tmp_path)
    first.write("start", ranks=2)
    first.close()
    with (tmp_path / log.NAME).open("a") as stream:
        stream.write('{"time": 1, "event": "st')
    second = log.Log(tmp_path)
    second.write("start", ranks=3)
    second.close()
    assert [entry["ranks"] for entry in log.read(tmp_path)] == [2, 3]
    log.Log(None).write("nothing", of_it="is written")


def saved(where: Path) -> None:
    checkpoint.save(where / folder.CHECKPOINTS, 64, 1, 1, ARRAYS)


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    where = tmp_path / "digits"
    digits = load_settings("digits")
    assert folder.prepare(where, digits, False) == "new"
    written = json.loads((where / folder.SETTINGS).read_text())
    assert written["learning_rate"]["base"] == 0.02  # the resolved ones, beside the results


PREPARE = """
import sys
from pathlib import Path
from hpcenv.base.errors import Failure
from hpcenv.runtime.train import folder
from hpcenv.runtime.train.settings import load_settings
try:
    print(folder.prepare(Path(sys.argv[1]), load_settings("digits", sys.argv[3:]), sys.argv[2] == "fresh"))
except Failure as failure:
    sys.exit(str(failure))
"""  # noqa: E501


def prepare(where: Path, *words: str) -> tuple[str, str]:
    """In a process of its own, as a run is: its lock ends with it."""
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, where, *words], capture_output=True, text=True
    )
    return done.stdout.strip(), done.stderr.strip()


def test_a_second_run_goes_on_or_says_why_not(tmp_path: Path) -> None:
    where = tmp_path / "digits"
    assert prepare(where, "")[0] == "new"
    # Nothing was saved: other settings harm nothing.
    assert prepare(where, "", "seed=5")[0] == "new"
    saved(where)
    assert prepare(where, "", "seed=5", "epochs=20")[0] == "going on"
    _, says = prepare(where, "", "seed=6")
    assert "holds a run with other settings" in says and "seed: 5 then, 6 now" in says
    assert "--fresh" in says
    assert prepare(where, "fresh", "seed=6")[0] == "new"
    assert (tmp_path / "digits.1" / folder.CHECKPOINTS).is_dir()
    assert not any((where / folder.CHECKPOINTS).iterdir())


def test_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match="holds no run"):
        folder.prepare(tmp_path, load_settings("digits"), True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_runs_do_not_write_in_one_folder(tmp_path: Path) -> None:
    where = tmp_path / "digits"
    assert folder.prepare(where, load_settings("digits"), False) == "new"
    for fresh in ("", "fresh"):
        _, says = prepare(where, fresh)
        assert "another run is writing there now" in says
