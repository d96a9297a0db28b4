"""Real files and a real process that maps one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcenv.validate.segments import swept

MAPPER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_only_what_is_new_and_that_nobody_has_mapped_goes(tmp_path: Path) -> None:
    def segment(name: str) -> Path:
        (tmp_path / name).write_bytes(bytes(4096))
        return tmp_path / name

    old, other = segment("vader_segment.old"), segment("somebody's")
    with pytest.raises(KeyboardInterrupt), swept(tmp_path):
        left = [segment("vader_segment.a.0.1"), segment("sm_segment.b"), segment("ucx_shm_posix_c")]
        alive, stranger = segment("vader_segment.alive"), segment("new")
        process = subprocess.Popen(
            [sys.executable, "-c", MAPPER, alive], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline() == b"mapped\n"
        raise KeyboardInterrupt
    process.communicate(timeout=60)
    assert {old, other, alive, stranger} == set(tmp_path.iterdir())
    assert not any(file.exists() for file in left)
