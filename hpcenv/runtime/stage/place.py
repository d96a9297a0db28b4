"""A node's copy of a tree: filled beside its place, journalled, then published by one rename."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from hpcenv.base.errors import BadInput, Outside
from hpcenv.base.publish import publish, remove
from hpcenv.runtime.console import say
from hpcenv.runtime.stage import manifest
from hpcenv.runtime.stage.manifest import Entry

LOCK_WAIT_S = 60.0


class Place:
    """Where one node gets its copy; made and used on the node's receiving rank.

    Beside ``DST`` lies ``.DST.staging`` while it is filled: ``tree``, the copy so far, and
    ``journal``, a line for each file that is there and right.

    Parameters
    ----------
    target : Path
        Where the copy is to lie.
    entries : sequence of Entry
        What it is to hold.

    Attributes
    ----------
    published : bool
        The copy lies there already.
    have : dict of int to Entry
        The files that are there and right, by their place in `entries`, with digests.

    Raises
    ------
    BadInput
        If something else lies at `target`.
    Outside
        If another staging fills it and does not end.
    """

    def __init__(self, target: Path, entries: Sequence[Entry]) -> None:
        self.target = target
        self.entries = entries
        self.beside = target.parent / f".{target.name}.staging"
        self.tree = self.beside / "tree"
        self.have: dict[int, Entry] = {}
        self._lock: int | None = None
        self._journal: IO[str] | None = None
        self._open: dict[int, tuple[IO[bytes], hashlib._Hash]] = {}
        target.parent.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self.published = self._published()
            if not self.published:
                self._resume()
        except BaseException:
            self.close()
            raise

    # -- before ----------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        self.beside.mkdir(exist_ok=True)
        handle = os.open(self.beside / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + LOCK_WAIT_S
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(handle)
                    raise Outside(
                        f"another staging has been filling it for {LOCK_WAIT_S:.0f} s",
                        where=str(self.target),
                        remedy="wait for it to end, or stage to another folder",
                    ) from None
                if not told:
                    say(f"{self.target}: another staging fills it; waiting")
                    told = True
                time.sleep(0.1)
        self._lock = handle
        # Whoever held the lock may have taken the folder away with it.
        self.beside.mkdir(exist_ok=True)

    def _published(self) -> bool:
        if not os.path.lexists(self.target):
            return False
        found = manifest.load(self.target / manifest.NAME)
        if found is None:
            raise BadInput(
                "something else lies where the copy is to be",
                where=str(self.target),
                remedy="choose a folder that is not there yet",
            )
        if [entry.unread() for entry in found] != list(self.entries):
            raise BadInput(
                "a copy of something else, or of an older state of the source, lies there",
                where=str(self.target),
                remedy=f"rm -r {self.target}, or choose another folder",
            )
        if spoilt := [each for each in found if not manifest.lies_there(self.target, each)]:
            raise BadInput(
                f"{len(spoilt)} of the copy's files were changed since, {spoilt[0].path!r} first",
                where=str(self.target),
                remedy=f"rm -r {self.target} and stage again",
            )
        self.have = {i: entry for i, entry in enumerate(found) if entry.kind == "file"}
        return True

    def _resume(self) -> None:
        """Keep what an interrupted staging left there and right; remove the rest."""
        self.tree.mkdir(exist_ok=True)
        journal = self.beside / "journal"
        wanted = {entry.unread(): i for i, entry in enumerate(self.entries)}
        if journal.exists():
            for text in journal.read_text("ascii", errors="replace").splitlines():
                entry = manifest.parse_line(text)
                place = wanted.get(entry.unread()) if entry else None
                if entry and place is not None and manifest.is_right(self.tree, entry):
                    self.have[place] = entry
        kept = {self.entries[i].path for i in self.have}
        wanted_folders = {entry.path for entry in self.entries if entry.kind == "folder"}
        for folder, folders, files in os.walk(self.tree):
            Path(folder).chmod(0o700)
            inner = os.path.relpath(folder, self.tree)
            for name in [*files, *folders]:
                path = Path(folder, name)
                whole = os.path.normpath(os.path.join(inner, name))
                is_folder = path.is_dir() and not path.is_symlink()
                if whole not in (wanted_folders if is_folder else kept):
                    remove(path)
            folders[:] = [name for name in folders if Path(folder, name).exists()]
        with publish(journal) as fresh:
            fresh.write_text("".join(manifest.line(e) + "\n" for e in self.have.values()), "ascii")
        self._journal = journal.open("a", encoding="ascii")
        for entry in self.entries:
            if entry.kind == "folder":
                path = self.tree / entry.path
                path.mkdir(exist_ok=True)
                path.chmod(0o700)

    def missing(self) -> list[int]:
        """The files that are still to come."""
        files = (i for i, entry in enumerate(self.entries) if entry.kind == "file")
        return [i for i in files if i not in self.have]

    def check_capacity(self) -> None:
        """See that what is missing has room, before the first byte of it.

        Raises
        ------
        Outside
            With what is free and what is needed, in bytes and in files.
        """
        missing = self.missing()
        about = os.statvfs(self.target.parent)
        block = about.f_frsize
        needed = sum(-(-self.entries[i].size // block) * block for i in missing)
        free = about.f_bavail * block
        where = str(self.target.parent)
        if needed > free:
            raise Outside(
                f"{free:,} bytes are free, {needed:,} are needed for {len(missing)} file(s)",
                where=where,
                remedy="free some, or stage to another file system (TMPDIR)",
            )
        # Some file systems count no files; they say 0 of 0.
        if about.f_files and len(missing) > about.f_favail:
            raise Outside(
                f"{about.f_favail:,} more files have room, {len(missing):,} are needed",
                where=where,
                remedy="stage to another file system (TMPDIR)",
            )

    # -- while it is filled ----------------------------------------------------------------------

    def write(self, index: int, offset: int, payload: memoryview, sha256: str | None) -> None:
        """Write a piece of a file; pieces of one file come in order.

        Parameters
        ----------
        index : int
            Of the file, in `entries`.
        offset : int
            Bytes.
        payload : memoryview
        sha256 : str or None
            With the last piece: what the whole file must have.

        Raises
        ------
        Outside
            If the content that arrived is not the one that was read.
        """
        entry = self.entries[index]
        path = self.tree / entry.path
        if offset == 0:
            self._open[index] = (path.open("wb"), hashlib.sha256())
        stream, state = self._open[index]
        stream.write(payload)
        state.update(payload)
        if sha256 is None:
            return
        stream.close()
        del self._open[index]
        if state.hexdigest() != sha256:
            raise Outside(
                f"what arrived has the SHA-256 {state.hexdigest()}, what was read {sha256}",
                where=str(path),
            )
        path.chmod(entry.mode)
        os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
        self.have[index] = replace(entry, sha256=sha256)
        assert self._journal is not None
        self._journal.write(manifest.line(self.have[index]) + "\n")
        self._journal.flush()

    # -- after -----------------------------------------------------------------------------------

    def publish(self, digests: dict[int, str]) -> None:
        """Make the copy visible: links, modes, one sync of the file system, manifest, rename.

        Parameters
        ----------
        digests : dict of int to str
            Of every file; with them the manifest is whole.
        """
        if not self.published:
            whole = [
                replace(entry, sha256=digests[i]) if entry.kind == "file" else entry
                for i, entry in enumerate(self.entries)
            ]
            for entry in whole:
                if entry.kind == "link" and entry.target is not None:
                    (self.tree / entry.path).symlink_to(entry.target)
            for entry in reversed(whole):  # the deepest first: a parent may forbid writing
                if entry.kind == "folder":
                    # The root is still written to, and moved.
                    own = 0o700 if entry.path == manifest.ROOT else 0
                    (self.tree / entry.path).chmod(entry.mode | own)
            _sync_file_system(self.tree)
            with publish(self.tree / manifest.NAME) as beside:
                beside.write_text(manifest.dump(whole), "ascii")
            os.rename(self.tree, self.target)
            _sync_file_system(self.target.parent)
        self.close()

    def close(self) -> None:
        """Let go of the lock; keep what lies beside only where a later staging can use it."""
        if self._lock is None:
            return
        if self._journal:
            self._journal.close()
        if not self.have or os.path.lexists(self.target):
            with contextlib.suppress(OSError):
                remove(self.beside)
        os.close(self._lock)
        self._lock = None


def _sync_file_system(path: Path) -> None:
    """Write out all of the file system that holds `path`: one sync for many small files."""
    handle = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(handle) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(handle)
