"""Shared memory that killed ranks leave behind: its files outlive whoever made them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

MEMORY = Path("/dev/shm")

_NAMES = ("vader_segment.*", "sm_segment.*", "ucx_shm_posix_*", "mpich_shar_tmp*")
"""What Open MPI 4's vader, Open MPI 5's sm, UCX and MPICH name theirs."""


@contextlib.contextmanager
def swept(folder: Path = MEMORY) -> Iterator[None]:
    """Remove what the block left: this user's new segments that no process has mapped.

    A job of the same user that runs meanwhile keeps its own, as it has them mapped. On this host
    alone; another node's are its own business.
    """
    before = _segments(folder)
    try:
        yield
    finally:
        left = _segments(folder) - before
        for file in left - _mapped() if left else ():
            file.unlink(missing_ok=True)


def _segments(folder: Path) -> set[Path]:
    found = set()
    for name in _NAMES:
        for file in folder.glob(name):
            with contextlib.suppress(FileNotFoundError):
                if file.lstat().st_uid == os.getuid():
                    found.add(file)
    return found


def _mapped() -> set[Path]:
    """Return the files that processes have mapped, as far as their maps may be read."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").splitlines():
                # Address, permissions, offset, device, inode, path: see proc_pid_maps(5).
                if "/" in line:
                    found.add(Path(line[line.index("/") :]))
    return found
