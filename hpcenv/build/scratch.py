"""Folders to build in: in memory where there is room, and gone whatever happens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcenv.base.publish import abandoned, unfinished
from hpcenv.engines.userns import remove_tree

_MEMORY = Path("/dev/shm")
_SPARE = 2 << 30
"""Memory left to everybody else, in bytes."""


@contextmanager
def scratch(folder: Path, name: str) -> Iterator[Path]:
    """Give a new folder that is removed, with whatever owners are in it, when the block ends.

    What a killed process left there before is removed first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep_trees(folder)
    path = unfinished(folder / name)
    path.mkdir()
    try:
        yield path
    finally:
        remove_tree(path)


def sweep_trees(folder: Path) -> None:
    """Remove the scratch folders in `folder` whose makers are no longer alive."""
    for path in abandoned(folder):
        if os.access(path.parent, os.W_OK) and path.stat().st_uid == os.geteuid():
            remove_tree(path)


def place(need: int, disk: Path) -> Path:
    """Return where to build: in memory where `need` bytes fit well, else on `disk`.

    Package managers sync after each file, and a disk makes them wait.
    """
    if roomy(need, _available(), _free(_MEMORY)) and not _noexec(_MEMORY):
        return _MEMORY / f"hpcenv-{os.geteuid()}"
    return disk


def roomy(need: int, available: int, free: int) -> bool:
    """Whether `need` bytes fit into memory, of which `available` are unused and `free` mounted."""
    return need + _SPARE <= available and need <= free


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = (line.split() for line in lines)
    return next((int(words[1]) << 10 for words in found if words[0] == "MemAvailable:"), 0)


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def _noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
