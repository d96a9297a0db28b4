"""Where the dynamic loader of a root file system finds a library, and what a library needs.

The order is that of ld.so(8): the needing file's RUNPATH, the folders of ``ld.so.conf`` in its
order and of ``ld.so.cache``, the trusted folders. LD_LIBRARY_PATH belongs to a launch, not to a
root file system.
"""

from __future__ import annotations

import contextlib
import posixpath
import struct
import sys
from collections.abc import Iterable, Iterator

from hpcenv.base.version import Version
from hpcenv.image.elf import Elf
from hpcenv.image.facts import ElfNeed
from hpcenv.image.rootfs import RootFs

_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_MAX_FILES = 400
"""No MPI needs more libraries; a root file system that claims so is not followed further."""

C_LIBRARY = frozenset(
    {
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "libutil.so.1",
        "libresolv.so.2",
        "libnsl.so.1",
        "libanl.so.1",
        "libmvec.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }
)
"""The C library's own files, which never cross between host and image."""


def library_folders(root: RootFs, machine: str) -> tuple[str, ...]:
    """Return the folders, links resolved, that the loader searches for a machine's libraries."""
    triple = _TRIPLES.get(machine, f"{machine}-linux-gnu")
    trusted = (f"/lib/{triple}", f"/usr/lib/{triple}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    folders = [*_configured(root, "/etc/ld.so.conf", set()), *_cached(root), *trusted]
    real = (root.resolve(folder) for folder in dict.fromkeys(folders))
    return tuple(dict.fromkeys(folder for folder in real if folder is not None))


def _configured(root: RootFs, file: str, seen: set[str]) -> Iterator[str]:
    text = None if file in seen else root.read(file)
    seen.add(file)
    if text is None:
        return
    for line in text.decode(errors="replace").splitlines():
        words = line.split("#", 1)[0].replace(",", " ").replace(":", " ").split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                absolute = posixpath.join(posixpath.dirname(file), pattern)
                for found in root.find(absolute):
                    yield from _configured(root, found, seen)
        elif words[:1] != ["hwcap"]:
            yield from (word.split("=", 1)[0] for word in words if word.startswith("/"))


def _cached(root: RootFs) -> Iterator[str]:
    """Yield the folders of ``ld.so.cache``: ``ldconfig FOLDER`` puts one there and nowhere else.

    The layout is glibc's, sysdeps/generic/dl-cache.h, since 2.2; older caches precede it.
    """
    data = root.read("/etc/ld.so.cache", 16 << 20) or b""
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0 or len(data) < start + 48:
        return
    data = data[start:]
    count = int.from_bytes(data[20:24], sys.byteorder)
    entries = data[48 : 48 + 24 * min(count, len(data) // 24)]
    for _, _, value, _, _ in struct.iter_unpack("=iIIIQ", entries[: len(entries) // 24 * 24]):
        end = data.find(b"\0", value)
        yield posixpath.dirname(data[value : max(end, value)].decode(errors="replace"))


def find_library(
    root: RootFs, name: str, *, origin: str, runpath: Iterable[str], folders: Iterable[str]
) -> str | None:
    """Return the real path of a needed library, or None where the loader would not find it.

    Parameters
    ----------
    origin : str
        The needing file, for ``$ORIGIN``.
    folders : iterable of str
        From `library_folders`.
    """
    here = posixpath.dirname(origin)
    own = [path.replace("${ORIGIN}", here).replace("$ORIGIN", here) for path in runpath]
    for folder in (*own, *folders):
        found = root.resolve(posixpath.join(folder, name))
        if found is not None:
            return found
    return None


def closure(root: RootFs, path: str) -> dict[str, Elf]:
    """Read a library and all that it needs and that is there, the C library left out.

    Returns
    -------
    dict
        Each real path with its ELF file, the library itself first. The files stay open.

    Raises
    ------
    ValueError
        If `path` is no ELF file.
    """
    real = root.resolve(path) or path
    files = {real: Elf(root.open(real))}
    folders = library_folders(root, files[real].machine)
    todo = [real]
    while todo and len(files) < _MAX_FILES:
        user = todo.pop(0)
        elf = files[user]
        for name in elf.needed:
            if name in C_LIBRARY:
                continue
            found = find_library(root, name, origin=user, runpath=elf.runpath, folders=folders)
            if found is not None and found not in files:
                with contextlib.suppress(ValueError, OSError):
                    files[found] = Elf(root.open(found))
                    todo.append(found)
    return files


def needs_of(path: str, elf: Elf) -> tuple[ElfNeed, ...]:
    """Return the highest version that a file needs of each versioned library.

    Versions without an order (``GLIBC_PRIVATE``, ``GLIBC_ABI_DT_RELR``) are each kept.
    """
    highest: dict[tuple[str, str], str] = {}
    plain: list[ElfNeed] = []
    for library, version in elf.version_needs:
        stem, _, number = version.rpartition("_")
        if not number[:1].isdigit():
            plain.append(ElfNeed(path, library, version))
            continue
        kept = highest.get((library, stem))
        if kept is None or Version.parse(number) > Version.parse(kept):
            highest[library, stem] = number
    ordered = [
        ElfNeed(path, library, f"{stem}_{number}") for (library, stem), number in highest.items()
    ]
    return tuple(sorted({*ordered, *plain}, key=lambda need: (need.library, need.version)))


def needs_below(root: RootFs, path: str) -> tuple[ElfNeed, ...]:
    """Return what a library and its dependencies need of versioned libraries.

    Raises
    ------
    ValueError
        If `path` is no ELF file.
    """
    files = closure(root, path)
    return tuple(need for file, elf in files.items() for need in needs_of(file, elf))
