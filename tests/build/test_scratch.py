"""A folder to build in is gone whatever happens, also while it is being removed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hpcenv.build.scratch import scratch


def interrupted(folder: Path, moment: int) -> bool:
    """Interrupt the removal at the Nth line of it; False where it has fewer."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if event == "call":
            return trace if frame.f_code.co_name in ("remove_tree", "remove") else None
        lines += event == "line"
        if lines == moment:
            raise KeyboardInterrupt  # which ends the tracing
        return trace

    before = sys.gettrace()
    try:
        with scratch(folder, "stage") as path:
            (path / "a/b").mkdir(parents=True)
            (path / "a/b/c").write_text("c")
            sys.settrace(trace)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_moment_of_the_removal(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    moment = 0
    while interrupted(folder, moment := moment + 1):
        assert not folder.exists(), moment
    assert moment > 3 and not folder.exists()


def test_an_error_goes_on_its_way(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch(tmp_path / "scratch", "stage"):
        _ = 1 // 0
    assert not (tmp_path / "scratch").exists()
