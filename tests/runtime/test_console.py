"""What people see: a bar on a terminal, plain lines elsewhere, nothing of other ranks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpcenv.base.errors import BadInput
from hpcenv.runtime.console import run_ranks

SHOW = """
from hpcenv.runtime.console import Progress
for quiet in (True, False):
    progress = Progress("digits", 200, quiet=quiet)
    for count in (50, 100):
        progress.told -= 60  # a minute later
        progress.at(count, "9 samples/s")
    progress.at(150)  # at once: too soon to be told
    progress.clear()
"""


def on_a_terminal() -> bytes:
    ours, theirs = os.openpty()
    subprocess.run(
        [sys.executable, "-c", SHOW], stderr=theirs, check=True, env=os.environ | {"TERM": "xterm"}
    )
    os.close(theirs)
    shown = os.read(ours, 10_000)
    os.close(ours)
    return shown


def test_a_bar_on_a_terminal() -> None:
    shown = on_a_terminal().decode()
    assert "\n" not in shown
    assert shown.count("digits") == 2
    assert " 25% 9 samples/s" in shown and " 50% 9 samples/s" in shown
    assert shown.endswith("\r\x1b[2K")  # nothing of it stays


def test_plain_lines_elsewhere() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True)
    assert done.stderr == "digits: 25% 9 samples/s\ndigits: 50% 9 samples/s\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (BadInput("no", where="f:3", remedy="do"), 2, "prog: f:3: no\n  do\n"),
        (KeyboardInterrupt(), 130, "prog: stopped; nothing half-made was left\n"),
        (PermissionError(13, "Permission denied", "/x"), 3, "prog: /x: Permission denied\n"),
    ],
)
def test_what_a_person_can_cause_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], raised: BaseException, status: int, says: str
) -> None:
    def body(ranks: object) -> int:
        raise raised

    assert run_ranks("prog", body) == status
    assert capsys.readouterr().err == says


def test_what_went_well_is_passed_on() -> None:
    assert run_ranks("prog", lambda ranks: 75 if ranks.size == 1 else 0) == 75
