r"""What a tree of files holds: paths, kinds, sizes, times, modes, digests.

Paths are relative, of any bytes: those that are not UTF-8 are kept by Python's surrogate escapes,
in JSON as ``\udcXX``.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from hpcenv.base.blobs import digest_of_file
from hpcenv.base.errors import BadInput

NAME = ".hpcenv-manifest.jsonl"
ROOT = "."
SCHEMA = 1
Kind = Literal["file", "folder", "link"]


@dataclass(frozen=True)
class Entry:
    """One file, folder or symbolic link.

    Attributes
    ----------
    path : str
        Relative to the tree's root, with ``/`` between its parts; ``.`` is the root.
    size : int
        Bytes; 0 for what is no file.
    mtime_ns : int
        Nanoseconds since 1970; 0 for what is no file.
    mode : int
        Permission bits (0o777 of them); 0 for links.
    target : str or None
        What a link says.
    sha256 : str or None
        Of a file's content, once it was read.
    """

    path: str
    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0
    target: str | None = None
    sha256: str | None = None

    def unread(self) -> Entry:
        """The same without the digest: what can be seen without reading."""
        return replace(self, sha256=None)


def scan(root: Path) -> list[Entry]:
    """List a tree, without reading its files, in the order of its paths' bytes.

    A manifest of an earlier staging at the root is not part of the tree.

    Raises
    ------
    BadInput
        If `root` is no folder, or holds what cannot be staged: a device, a socket, a pipe, a
        symbolic link that leads out of the tree.
    """
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "is not there"
        raise BadInput(f"what is to be staged {what}", where=str(root))
    top = os.path.realpath(root)
    entries = [Entry(ROOT, "folder", mode=stat.S_IMODE(root.stat().st_mode) & 0o777)]
    refused: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(top, folder)) as found:
            for item in found:
                path = f"{folder}/{item.name}" if folder else item.name
                if path == NAME:
                    continue
                about = item.stat(follow_symlinks=False)
                mode = stat.S_IMODE(about.st_mode) & 0o777
                if stat.S_ISREG(about.st_mode):
                    entries.append(Entry(path, "file", about.st_size, about.st_mtime_ns, mode))
                elif stat.S_ISDIR(about.st_mode):
                    entries.append(Entry(path, "folder", mode=mode))
                    folders.append(path)
                elif stat.S_ISLNK(about.st_mode):
                    target = os.readlink(item.path)
                    entries.append(Entry(path, "link", target=target))
                    if not _inside(top, item.path, target):
                        refused.append(f"{_shown(path)} -> {_shown(target)} leads out of the tree")
                else:
                    refused.append(f"{_shown(path)} is no file, folder or symbolic link")
    if refused:
        more = [f"and {len(refused) - 10} more"] if len(refused) > 10 else []
        raise BadInput(
            "it holds what cannot be staged:\n    " + "\n    ".join([*refused[:10], *more]),
            where=str(root),
            remedy="stage a folder that holds all that its links lead to, by relative paths",
        )
    return sorted(entries, key=lambda entry: os.fsencode(entry.path))


def _inside(top: str, link: str, target: str) -> bool:
    if os.path.isabs(target):
        return False  # in the copy it would lead back to the source
    led = os.path.realpath(os.path.join(os.path.dirname(link), target))
    return led == top or led.startswith(top + os.sep)


def _shown(path: str) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")


def key(entries: Iterable[Entry]) -> str:
    """Return a digest of what can be seen without reading: it names a staged copy."""
    state = hashlib.sha256()
    for entry in entries:
        state.update(line(entry.unread()).encode() + b"\n")
    return state.hexdigest()


def line(entry: Entry) -> str:
    """Write an entry as one line of ASCII JSON."""
    return json.dumps({name: value for name, value in asdict(entry).items() if value is not None})


def parse_line(text: str) -> Entry | None:
    """Read a line; None for one that was cut short or is no entry."""
    try:
        data = json.loads(text)
        return Entry(**data) if isinstance(data, dict) else None
    except (json.JSONDecodeError, TypeError):
        return None


def dump(entries: Sequence[Entry]) -> str:
    """Write a manifest: a head, a line an entry."""
    head = json.dumps({"schema": SCHEMA, "entries": len(entries)})
    return "\n".join([head, *map(line, entries)]) + "\n"


def load(file: Path) -> list[Entry] | None:
    """Read a manifest; None where there is none or it is not whole."""
    try:
        head, *lines = file.read_text("ascii").splitlines()
        about = json.loads(head)
        entries = [parse_line(each) for each in lines]
    except (OSError, ValueError):
        return None
    whole = [entry for entry in entries if entry is not None]
    if about != {"schema": SCHEMA, "entries": len(whole)} or len(whole) != len(entries):
        return None
    return whole


def lies_there(root: Path, entry: Entry) -> bool:
    """Whether `root` holds the entry, as far as can be seen without reading."""
    path = root / entry.path
    try:
        about = path.lstat()
    except OSError:
        return False
    if entry.kind == "folder":
        return stat.S_ISDIR(about.st_mode)
    if entry.kind == "link":
        return stat.S_ISLNK(about.st_mode) and os.readlink(path) == entry.target
    right = (entry.size, entry.mtime_ns)
    return stat.S_ISREG(about.st_mode) and (about.st_size, about.st_mtime_ns) == right


def is_right(root: Path, entry: Entry) -> bool:
    """Whether `root` holds the file with this content, by reading it."""
    try:
        return lies_there(root, entry) and digest_of_file(root / entry.path) == entry.sha256
    except OSError:
        return False
