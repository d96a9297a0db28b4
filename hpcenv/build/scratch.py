"""Folders to build in: in memory where there is room, and gone whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
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
    path = unfinished(folder / name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep_trees(folder)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        try:
            remove_tree(path)
        except BaseException:  # Ctrl-C, which comes once: the rest goes as well
            remove_tree(path)
            raise
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless others build there


def sweep_trees(folder: Path) -> None:
    """Remove the scratch folders in `folder` whose makers are no longer alive."""
    for path in abandoned(folder):
        if os.access(path.parent, os.W_OK) and path.stat().st_uid == os.geteuid():
            remove_tree(path)


def place(need: int, disk: Path) -> Path:
    """Return where to build: in memory where `need` bytes fit well, else on `disk`.

    Package managers sync after each file, and a disk makes them wait.
    """
    folder = _MEMORY / f"hpcenv-{os.geteuid()}"
    if not roomy(need, _available(), _free(_MEMORY)) or _noexec(_MEMORY):
        return disk
    # Anybody may make a folder there, under any name.
    return folder if not os.path.lexists(folder) or _ours(folder) else disk


def roomy(need: int, available: int, free: int) -> bool:
    """Whether `need` bytes fit into memory, of which `available` are unused and `free` mounted."""
    return need + _SPARE <= available and need <= free


def _ours(folder: Path) -> bool:
    there = folder.lstat()
    return stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()


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
