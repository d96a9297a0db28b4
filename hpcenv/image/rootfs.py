"""Files of a root file system, read where they lie: a folder (the host's own among them) or a SIF.

Nothing is run and nothing unpacked. Links are followed within the root, as a process in the
container would follow them: absolute targets start at the root, ``..`` stops there, and a cycle
is an error, not a loop.
"""

from __future__ import annotations

import fnmatch
import io
import os
import posixpath
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeVar

from hpcenv.base.errors import BadInput
from hpcenv.image import sif

T = TypeVar("T")
Kind = Literal["file", "folder", "link", "other"]
MAX_LINKS = 40
"""As many links as Linux follows in one path (path_resolution(7))."""


@dataclass(frozen=True)
class Stat:
    """What lies at a path; `size` in bytes, `mode` the permission bits."""

    kind: Kind
    size: int
    mode: int


class RootFs(Protocol):
    """A root file system. Paths are absolute POSIX strings within it.

    Attributes
    ----------
    name : str
        What the person called it, for messages.
    """

    name: str

    def find(self, *patterns: str) -> Iterator[str]:
        """Yield the existing paths that match, pattern by pattern, each pattern's sorted.

        A pattern is an absolute path whose components may hold ``*``, ``?`` and ``[…]``. Folders
        that are links are followed; what is found is not resolved.
        """
        ...

    def resolve(self, path: str) -> str | None:
        """Return the path with every link followed, or None where nothing is there."""
        ...

    def stat(self, path: str) -> Stat | None:
        """Tell what lies there, links followed; None where nothing does."""
        ...

    def readlink(self, path: str) -> str | None:
        """Return a link's own text, None where there is no link; folders are resolved."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a regular file for reading, links followed.

        Raises
        ------
        FileNotFoundError
            If no regular file is there.
        """
        ...

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """Return the first `limit` bytes of a regular file; None where there is none."""
        ...


def open_rootfs(path: Path) -> RootFs:
    """Open a folder or a SIF as a root file system.

    Raises
    ------
    BadInput
        If it is neither, or is damaged.
    """
    if path.is_dir():
        return FolderRoot(path)
    if not path.exists():
        raise BadInput("no such image", where=str(path), remedy="hpcenv image list")
    try:
        return SifRoot(path)
    except PermissionError:
        raise
    except (ValueError, OSError) as error:
        raise BadInput(
            f"not a readable SIF: {error}",
            where=str(path),
            remedy="an image is a .sif file or a folder that holds a root file system",
        ) from None


class _Tree:
    """What follows from three primitives on paths whose folders are resolved already."""

    name: str

    @abstractmethod
    def _lstat(self, path: str) -> Stat | None: ...

    @abstractmethod
    def _target(self, path: str) -> str: ...

    @abstractmethod
    def _names(self, path: str) -> list[str]: ...

    @abstractmethod
    def _open(self, path: str) -> BinaryIO: ...

    def resolve(self, path: str) -> str | None:
        return self._resolve(path, last=True)

    def _resolve(self, path: str, *, last: bool) -> str | None:
        todo = _parts(path)
        done, links = "/", 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = posixpath.join(done, part)
            found = self._lstat(here)
            if found is None:
                return None
            if found.kind == "link" and (todo or last):
                links += 1
                if links > MAX_LINKS:
                    return None
                target = self._target(here)
                todo += _parts(target)
                if target.startswith("/"):
                    done = "/"
            elif todo and found.kind != "folder":
                return None
            else:
                done = here
        return done

    def stat(self, path: str) -> Stat | None:
        real = self.resolve(path)
        return None if real is None else self._lstat(real)

    def readlink(self, path: str) -> str | None:
        real = self._resolve(path, last=False)
        found = None if real is None else self._lstat(real)
        return self._target(real) if real and found and found.kind == "link" else None

    def open(self, path: str) -> BinaryIO:
        real = self.resolve(path)
        found = None if real is None else self._lstat(real)
        if real is None or found is None or found.kind != "file":
            raise FileNotFoundError(f"{self.name}: no file {path}")
        return self._open(real)

    def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        try:
            with self.open(path) as file:
                return file.read(limit)
        except (FileNotFoundError, PermissionError):
            return None

    def find(self, *patterns: str) -> Iterator[str]:
        for pattern in patterns:
            # A pattern may come out of the image (ld.so.conf): its ``..`` must not lead out of it.
            inside = posixpath.normpath("/" + pattern.lstrip("/"))
            yield from self._find("/", "/", inside.split("/")[1:])

    def _find(self, shown: str, real: str, parts: list[str]) -> Iterator[str]:
        """Match below a folder: `shown` as the pattern reached it, `real` with links resolved."""
        part, rest = parts[0], parts[1:]
        names = [part]
        if any(mark in part for mark in "*?["):
            names = sorted(fnmatch.filter(self._names(real), part))
        above, below = shown.rstrip("/") + "/", real.rstrip("/") + "/"
        for name in names:
            path, inner = above + name, below + name
            child = self._lstat(inner)
            if child is None:
                continue
            if not rest:
                yield path
                continue
            target: str | None = inner
            if child.kind == "link":
                target = self.resolve(inner)
                child = self._lstat(target) if target else None
            if target and child and child.kind == "folder":
                yield from self._find(path, target, rest)


def _parts(path: str) -> list[str]:
    """Split a path, last part first; a slash at its end asks for a folder, as ``/.`` does."""
    return [part for part in reversed((path + "." * path.endswith("/")).split("/")) if part]


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


class FolderRoot(_Tree):
    """A folder that holds a root file system; ``/`` is the host's own."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = os.path.realpath(folder)

    def _host(self, path: str) -> str:
        return self._folder.rstrip("/") + path

    def _lstat(self, path: str) -> Stat | None:
        try:
            found = os.lstat(self._host(path))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        mode = found.st_mode
        return Stat(_kind(mode), found.st_size, stat.S_IMODE(mode))

    def _target(self, path: str) -> str:
        return os.readlink(self._host(path))

    def _names(self, path: str) -> list[str]:
        try:
            return os.listdir(self._host(path))
        except PermissionError:
            return []

    def _open(self, path: str) -> BinaryIO:
        return open(os.open(self._host(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _damage_is_an_oserror(read: Callable[[], T]) -> T:
    """Read, where the bytes are a stranger's and may make the library raise anything."""
    try:
        return read()
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"damaged SquashFS: {type(error).__name__}: {error}") from error


def _open_squashfs(file: BinaryIO, offset: int) -> Any:
    from PySquashfsImage import SquashFsImage

    class Image(SquashFsImage):  # type: ignore[misc, unused-ignore]
        def _get_compressor(self, number: int) -> Any:
            return _Lz4() if number == _LZ4 else super()._get_compressor(number)

        def _dir_scan(self, start_block: int, offset: int) -> tuple[int, int]:
            # The library reads all inodes at once: 36,000 take 1.5 s, and we ask for some hundred.
            return start_block, offset

    return Image(file, offset)


_LZ4 = 5


class _Lz4:
    """PySquashfsImage 0.9 takes lz4's blocks, which SquashFS has, for lz4's frames."""

    def uncompress(self, source: bytes, size: int, outsize: int) -> bytes:
        import lz4.block

        data: bytes = lz4.block.decompress(source[:size], uncompressed_size=outsize)
        return data


class SifRoot(_Tree):
    """The root file system in a SIF's primary partition, a SquashFS read at its offset."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        file = path.open("rb")
        try:
            _, descriptors = sif.read_descriptors(file)
            part = sif.primary_partition(descriptors)
            kind = sif.Partition.unpack(part.extra).fs
            if kind == sif.FsType.ENCRYPTED_SQUASHFS:
                raise ValueError("its root file system is encrypted")
            if kind != sif.FsType.SQUASHFS:
                raise ValueError(f"its root file system is of type {kind}, not SquashFS")
            if part.offset + part.size > os.fstat(file.fileno()).st_size:
                raise ValueError("it is cut short: its root file system ends after the file does")
            self._image: Any = _damage_is_an_oserror(lambda: _open_squashfs(file, part.offset))
        except BaseException:
            file.close()
            raise

        self._places: dict[str, tuple[int, int] | None] = {"/": self._image.root}
        self._folders: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        self._inodes: dict[tuple[int, int], Any] = {}

    def _place(self, path: str) -> tuple[int, int] | None:
        """Return where the inode of a path lies; folders are read as they are walked through."""
        if path not in self._places:
            folder, _, name = path.rpartition("/")
            place = self._place(folder or "/")
            if place is not None and stat.S_ISDIR(self._inode_at(place).mode):
                self._places[path] = self._entries(place).get(name)
            else:
                self._places[path] = None
        return self._places[path]

    def _inode(self, path: str) -> Any:
        place = self._place(path)
        return None if place is None else self._inode_at(place)

    def _inode_at(self, place: tuple[int, int]) -> Any:
        if place not in self._inodes:
            self._inodes[place] = _damage_is_an_oserror(lambda: self._image._read_inode(*place))
        return self._inodes[place]

    def _entries(self, place: tuple[int, int]) -> dict[str, tuple[int, int]]:
        if place not in self._folders:
            listed = _damage_is_an_oserror(lambda: self._image._opendir(*place).entries)
            self._folders[place] = {
                os.fsdecode(entry["name"]): (entry["start_block"], entry["offset"])
                for entry in listed
            }
        return self._folders[place]

    def _lstat(self, path: str) -> Stat | None:
        inode = self._inode(path)
        if inode is None:
            return None
        return Stat(_kind(inode.mode), inode.data, stat.S_IMODE(inode.mode))

    def _target(self, path: str) -> str:
        target = self._inode(path).symlink
        return os.fsdecode(target) if isinstance(target, bytes) else str(target)

    def _names(self, path: str) -> list[str]:
        place = self._place(path)
        return [] if place is None else list(self._entries(place))

    def _open(self, path: str) -> BinaryIO:
        return io.BufferedReader(_SquashFile(self._image, self._inode(path)), 1 << 16)


class _SquashFile(io.RawIOBase):
    """A file of a SquashFS with random access: of a 40 MB library a few blocks are needed."""

    def __init__(self, image: Any, inode: Any) -> None:
        self._image = image
        self._size: int = inode.data
        self._block: int = image.sblk.block_size
        self._at = 0
        self._pieces: list[tuple[int, int]] = []
        start = inode.start
        if inode.blocks:
            for word in image._read_block_list(inode.block_start, inode.block_offset, inode.blocks):
                self._pieces.append((start, word))
                start += word & ~(1 << 24)
        self._tail = (inode.fragment, inode.offset) if inode.frag_bytes else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._size:
            return 0
        index, within = divmod(self._at, self._block)
        data = self._piece(index)[within : within + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _piece(self, index: int) -> bytes:
        return _damage_is_an_oserror(lambda: self._read_piece(index))

    def _read_piece(self, index: int) -> bytes:
        length = min(self._block, self._size - index * self._block)
        if index < len(self._pieces):
            start, word = self._pieces[index]
            if word == 0:  # a hole
                return bytes(length)
            whole: bytes = self._image._read_data_block(start, word)
        else:
            if self._tail is None:
                raise OSError("damaged SquashFS: a file is shorter than its inode says")
            fragment, offset = self._tail
            whole = self._image._read_data_block(*self._image._read_fragment(fragment))[offset:]
        if len(whole) < length:
            raise OSError("damaged SquashFS: a block is shorter than its file needs")
        return whole[:length]
