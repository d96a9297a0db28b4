"""Nothing half-made is ever visible: write beside, sync, rename, sync the folder."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".part"
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
    OSError
        What the block raises; where the disk is full or failed, it names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = unfinished(path)
    try:
        yield beside
        if beside.is_dir() and not beside.is_symlink():
            _sync_all(beside)
            _rename_unless_there(beside, path)
        else:
            _sync(beside)
            os.replace(beside, path)
        _sync(path.parent)
    except OSError as error:
        if error.filename is None and error.errno in _OF_THE_DISK:
            error.filename = str(path)  # a write does not say which file
        raise
    finally:
        remove(beside)


def unfinished(path: Path) -> Path:
    """Return a new name beside `path` that `sweep` knows for this process's, made by nobody yet."""
    # The name's beginning is for people who find it; the whole could be too long for a name.
    return path.parent / f".{path.name[:30]}.{_owner()}.{secrets.token_hex(4)}{_SUFFIX}"


def abandoned(folder: Path) -> list[Path]:
    """Return what processes of this host that are no longer alive left unfinished in `folder`."""
    found = []
    for entry in folder.glob(f".*{_SUFFIX}"):
        parts = entry.name.removesuffix(_SUFFIX).rsplit(".", 2)
        if len(parts) != 3 or "@" not in parts[1]:
            continue
        process, _, host = parts[1].partition("@")
        if host == _host() and not _alive(process):
            found.append(entry)
    return found


def sweep(folder: Path) -> list[Path]:
    """Remove what publishers of this host that are no longer alive left in `folder`.

    Returns
    -------
    list of Path
        What was removed.
    """
    gone = abandoned(folder)
    for entry in gone:
        remove(entry)
    return gone


def remove(path: Path) -> None:
    """Remove a file or a folder, whichever it is, if it is there."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError, PermissionError):
        shutil.rmtree(path)
        return
    # A folder without write permission cannot be emptied by its owner; ours to open up. And
    # somebody else may be removing the same.
    with contextlib.suppress(FileNotFoundError):
        path.chmod(0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = Path(folder, name)
            if not inner.is_symlink():
                with contextlib.suppress(OSError):
                    inner.chmod(0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _rename_unless_there(beside: Path, path: Path) -> None:
    try:
        if not path.is_dir():
            os.rename(beside, path)
    except OSError as error:
        # Published by somebody else between the look and the rename.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _host() -> str:
    # Process numbers mean something within one PID namespace of one host.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{socket.gethostname().replace('.', '_')}_{namespace}"


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


def _sync_all(folder: Path) -> None:
    # One sync for however many files: that of the file system they are on.
    handle = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(handle)
