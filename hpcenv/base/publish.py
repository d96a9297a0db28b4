"""Nothing half-made is ever visible: write beside, sync, rename, sync the folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".part"


@contextlib.contextmanager
def publish(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to, and rename it to `path` when the block ends well.

    The block may make a file or a folder there. A file replaces what stood at `path`. A folder
    never does: where `path` already exists as a folder, somebody published it first, and ours is
    dropped; so publish folders only under names that tell their content. When the block raises,
    or the process dies, `path` is as it was.

    Raises
    ------
    FileNotFoundError
        If the block ended without making anything.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / f".{path.name}.{_owner()}.{secrets.token_hex(4)}{_SUFFIX}"
    try:
        yield beside
        if beside.is_dir() and not beside.is_symlink():
            _sync_tree(beside)
            if not path.is_dir():
                os.rename(beside, path)
        else:
            _sync(beside)
            os.replace(beside, path)
        _sync(path.parent)
    finally:
        remove(beside)


def sweep(folder: Path) -> list[Path]:
    """Remove what publishers of this host that are no longer alive left in `folder`.

    Returns
    -------
    list of Path
        What was removed.
    """
    gone = []
    for entry in folder.glob(f".*{_SUFFIX}"):
        parts = entry.name.removesuffix(_SUFFIX).rsplit(".", 2)
        if len(parts) != 3 or "@" not in parts[1]:
            continue
        process, _, host = parts[1].partition("@")
        if host == _host() and not _alive(process):
            remove(entry)
            gone.append(entry)
    return gone


def remove(path: Path) -> None:
    """Remove a file or a folder, whichever it is, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_make_writable_and_retry)
    else:
        path.unlink(missing_ok=True)


def _make_writable_and_retry(function: object, name: str, _: object) -> None:
    # A folder without write permission cannot be emptied by its owner; ours to open up.
    parent = os.path.dirname(name)
    os.chmod(parent, 0o700)
    with contextlib.suppress(OSError):
        os.chmod(name, 0o700, follow_symlinks=False) if os.path.isdir(name) else None
    if os.path.isdir(name) and not os.path.islink(name):
        shutil.rmtree(name)
    else:
        os.unlink(name)


def _host() -> str:
    return socket.gethostname().replace(".", "_")


def _owner() -> str:
    return f"{os.getpid()}-{_started(os.getpid())}@{_host()}"


def _started(pid: int) -> str:
    # Start time in ticks since boot: tells a process from a later one with the same number.
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _alive(process: str) -> bool:
    pid, _, started = process.partition("-")
    return pid.isdigit() and _started(int(pid)) == started


def _sync(path: Path) -> None:
    if path.is_symlink():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            file = Path(folder) / name
            if file.is_file() and not file.is_symlink():
                _sync(file)
        _sync(Path(folder))
