"""Layers: a stage's root file system as the difference to the stage it started from.

A layer is a folder with ``layer.tar.zst`` and ``index.json``. Removed paths are whiteouts, as OCI
images have them: an empty file ``.wh.NAME``. The index tells every entry of the layer, so that
differences and merged trees are computed without reading the content again.

A group of hard links is one thing: where one of its names changes, all of them are in the layer.
So a link never points out of its layer.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import zstandard

from hpcenv.build.normalise import Fate, fate

TAR = "layer.tar.zst"
INDEX = "index.json"
WHITEOUT = ".wh."
_LEVEL = 1
_CHUNK = 1 << 20

Kind = Literal["file", "folder", "link", "hard", "char", "block", "fifo"]
_KINDS: Mapping[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.FIFOTYPE: "fifo",
}
_XATTR = "SCHILY.xattr."


@dataclass(frozen=True)
class Entry:
    """One path of a tree.

    Attributes
    ----------
    mode : int
        Permission bits with setuid, setgid and sticky.
    to : str
        Target of a symbolic or hard link; ``MAJOR:MINOR`` of a device.
    sha256 : str
        Of a file's content, also where the path is a hard link to it.
    xattrs : mapping
        Extended attributes, such as ``security.capability``; bytes as Latin-1.
    group : tuple of str
        The names of a file that has several; empty for one name.
    """

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int = 0
    to: str = ""
    sha256: str = ""
    xattrs: Mapping[str, str] | None = None
    group: tuple[str, ...] = ()


@dataclass(frozen=True)
class Index:
    """A layer's entries in the order of its tar, and the paths that it removes."""

    entries: Mapping[str, Entry]
    removed: tuple[str, ...]


def scan(tar: IO[bytes], keeps: Callable[[str], bool] = lambda path: True) -> dict[str, Entry]:
    """Read a tar stream of a whole tree and return what of it is content, by path.

    Paths are relative, without ``./``; the root itself is ``.``.
    """
    contents: dict[str, tuple[int, str]] = {}
    found: dict[str, Entry] = {}
    groups: dict[str, list[str]] = defaultdict(list)
    with tarfile.open(fileobj=tar, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            path = _clean(member.name)
            kind = _KINDS[member.type]
            size, digest, head, to = 0, "", b"", ""
            if kind == "file":
                size, digest, head = _read(archive, member)
                contents[path] = size, digest
            elif kind == "hard":
                to = _clean(member.linkname)
                size, digest = contents[to]
                contents[path] = size, digest
            elif kind == "link":
                to = member.linkname
            elif kind in ("char", "block"):
                to = f"{member.devmajor}:{member.devminor}"
            what = fate(path, folder=kind == "folder", head=head)
            if what is Fate.DROP or not keeps(path):
                continue
            mode = member.mode & 0o7777
            if what is Fate.EMPTY:
                size, digest, mode = 0, hashlib.sha256().hexdigest(), 0o644
                kind, to = ("file", "") if kind == "hard" else (kind, to)
            elif kind in ("file", "hard"):
                groups[to or path].append(path)
            found[path] = Entry(
                kind, mode, member.uid, member.gid, size, to, digest, _xattrs(member)
            )
    for names in groups.values():
        first, *others = names
        kept = tuple(names) if others else ()
        for name in names:
            # The first name that is kept carries the content, whichever the tar gave it to.
            entry = found[name]
            kind, to = ("file", "") if name == first else ("hard", first)
            found[name] = replace(entry, kind=kind, to=to, group=kept)
    return found


def difference(tree: Mapping[str, Entry], parent: Mapping[str, Entry]) -> Index:
    """Return the index of the layer that turns `parent` into `tree`."""
    changed = {path: entry for path, entry in tree.items() if parent.get(path) != entry}
    gone = {path for path in parent if path not in tree}
    # What lay in a folder goes with it, be it removed or replaced by something else.
    folders = {path for path, entry in tree.items() if entry.kind == "folder"}
    tops = (path for path in gone if str(PurePosixPath(path).parent) in folders)
    return Index(changed, tuple(sorted(tops)))


def merge(layers: Sequence[Index]) -> dict[str, tuple[int, Entry]]:
    """Return the tree of layers, the lowest first: each path's entry and the layer it is from."""
    tree: dict[str, tuple[int, Entry]] = {}
    for number, layer in enumerate(layers):
        replaced = {
            path
            for path, entry in layer.entries.items()
            if entry.kind != "folder" and path in tree and tree[path][1].kind == "folder"
        }
        cut = replaced | set(layer.removed)
        if cut:
            tree = {
                path: found
                for path, found in tree.items()
                if path not in cut and not any(str(up) in cut for up in PurePosixPath(path).parents)
            }
        tree.update((path, (number, entry)) for path, entry in layer.entries.items())
    return tree


def tree_of(layers: Sequence[Index]) -> dict[str, Entry]:
    """Return the entries of the tree that layers make, the lowest first."""
    return {path: entry for path, (_, entry) in merge(layers).items()}


def write_layer(folder: Path, index: Index, tar: IO[bytes], epoch: int) -> None:
    """Write a layer from a tar stream that has at least the content of its entries.

    Parameters
    ----------
    folder : Path
        Where its files are made.
    tar : file
        The same tree that `index` was made from; what is not in the index is passed over.
    epoch : int
        Seconds since 1970 of every time in the layer.
    """
    with _compressed(folder / TAR) as out, _writer(out) as layer:
        for path in index.removed:
            parent, name = PurePosixPath(path).parent, PurePosixPath(path).name
            _add(layer, _member(str(parent / (WHITEOUT + name)), Entry("file", 0, 0, 0), epoch))
        with tarfile.open(fileobj=tar, mode="r|", bufsize=_CHUNK) as archive:
            for member in archive:
                path = _clean(member.name)
                entry = index.entries.get(path)
                if entry is None:
                    continue
                content: IO[bytes] | None = None
                if entry.kind == "file":
                    content = archive.extractfile(member) if entry.size else io.BytesIO()
                _add(layer, _member(path, entry, epoch), content)
    # Rows, as there are tens of thousands of them.
    rows = [[path, *astuple(entry)] for path, entry in index.entries.items()]
    (folder / INDEX).write_text(json.dumps({"removed": index.removed, "entries": rows}))


def read_index(folder: Path) -> Index:
    """Return the index of a layer."""
    data = json.loads((folder / INDEX).read_text())
    found = {
        path: replace(Entry(*row), group=tuple(group)) for path, *row, group in data["entries"]
    }
    return Index(found, tuple(data["removed"]))


def write_tree(
    folders: Sequence[Path], out: IO[bytes], epoch: int, keeps: Callable[[str], bool] | None = None
) -> None:
    """Write the tree of layers as one tar stream without whiteouts, each path once.

    Folders come first, then the rest layer by layer: the order depends on the layers alone.
    """
    indexes = [read_index(folder) for folder in folders]
    tree = merge(indexes)
    if keeps is not None:
        tree = {path: found for path, found in tree.items() if keeps(path)}
    with _writer(out) as whole:
        for path in sorted(path for path, (_, entry) in tree.items() if entry.kind == "folder"):
            _add(whole, _member(path, tree[path][1], epoch))
        for number, folder in enumerate(folders):
            for path, content in _contents(folder):
                found = tree.get(path)
                if found is not None and found[0] == number and found[1].kind != "folder":
                    _add(whole, _member(path, found[1], epoch), content)


def _contents(folder: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    decompressor = zstandard.ZstdDecompressor()
    with (
        (folder / TAR).open("rb") as packed,
        decompressor.stream_reader(packed, read_size=_CHUNK) as source,
        tarfile.open(fileobj=source, mode="r|", bufsize=_CHUNK) as archive,
    ):
        for member in archive:
            yield member.name, archive.extractfile(member) if member.isreg() else None


@contextmanager
def _compressed(file: Path) -> Iterator[IO[bytes]]:
    compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=-1)
    with file.open("wb") as raw, compressor.stream_writer(raw, closefd=False) as out:
        yield out


@contextmanager
def _writer(out: IO[bytes]) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(fileobj=out, mode="w|", bufsize=_CHUNK, encoding="utf-8") as archive:
            yield archive
    except BrokenPipeError as broken:
        # Who is interrupted in mid-stream may find the pipe broken while the archive is closed;
        # what is told then is the interruption.
        if broken.__context__ and not isinstance(broken.__context__, Exception):
            raise broken.__context__ from None
        raise


def _add(
    archive: tarfile.TarFile, member: tarfile.TarInfo, content: IO[bytes] | None = None
) -> None:
    # mksquashfs (4.5.1) drops the first slash of a link's target where a pax header holds it, as
    # it does for long and non-ASCII ones. GNU's way is read right, but has no attributes.
    archive.format = tarfile.PAX_FORMAT if member.pax_headers else tarfile.GNU_FORMAT
    archive.addfile(member, content)


def _member(path: str, entry: Entry, epoch: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    types = {kind: code for code, kind in _KINDS.items()} | {"file": tarfile.REGTYPE}
    member.type = types[entry.kind]
    member.mode, member.uid, member.gid, member.mtime = entry.mode, entry.uid, entry.gid, epoch
    member.size = entry.size if entry.kind == "file" else 0
    if entry.kind in ("link", "hard"):
        member.linkname = entry.to
    elif entry.kind in ("char", "block"):
        major, _, minor = entry.to.partition(":")
        member.devmajor, member.devminor = int(major), int(minor)
    member.pax_headers = {
        _XATTR + name: value.encode("latin-1").decode("utf-8", "surrogateescape")
        for name, value in (entry.xattrs or {}).items()
    }
    return member


def _xattrs(member: tarfile.TarInfo) -> dict[str, str] | None:
    found = {
        name.removeprefix(_XATTR): value.encode("utf-8", "surrogateescape").decode("latin-1")
        for name, value in member.pax_headers.items()
        if name.startswith(_XATTR)
    }
    return found or None


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[int, str, bytes]:
    content = archive.extractfile(member)
    assert content is not None
    state = hashlib.sha256()
    head = chunk = content.read(_CHUNK)
    while chunk:
        state.update(chunk)
        chunk = content.read(_CHUNK)
    return member.size, state.hexdigest(), head[:16]


def _clean(name: str) -> str:
    return str(PurePosixPath(name.lstrip("/")))
