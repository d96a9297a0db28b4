"""What the dynamic loader reads of an ELF file.

A reader of our own, since only the dynamic segment is needed, since it must be found in files
inside a compressed image without reading all of them, and since it must be quick: an Open MPI has
4,000 dynamic symbols, which a general ELF library turns into objects one by one in half a second.
The layout is that of the System V gABI, chapters 4 and 5, and of the LSB's symbol versioning.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

MACHINES = {
    3: "i686",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
}
"""`uname -m` by e_machine, from the gABI's list of machines."""

_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
_GNU_HASH, _VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = (
    0x6FFFFEF5,
    0x6FFFFFFC,
    0x6FFFFFFD,
    0x6FFFFFFE,
    0x6FFFFFFF,
)
_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_MAX_TABLE = 64 << 20
"""No table that the loader needs is larger, in bytes; what claims to be is not believed."""


@dataclass(frozen=True)
class Symbol:
    """A dynamic symbol: its address (0 where it is undefined) and size in bytes."""

    address: int
    size: int
    defined: bool


class Elf:
    """A 64-bit ELF file.

    Parameters
    ----------
    file : BinaryIO
        Open for reading, with random access; must stay open while this is used.

    Raises
    ------
    ValueError
        If it is not a 64-bit ELF file, or is damaged. The properties raise it, too.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        ident = self._bytes(0, 16)
        if ident[:4] != b"\x7fELF":
            raise ValueError("not an ELF file")
        if ident[4] != 2:
            raise ValueError("not a 64-bit ELF file")
        self._order = "<" if ident[5] == 1 else ">"
        head = self._unpack("HHIQQQIHHHHHH", self._bytes(16, 48))
        self.machine = MACHINES.get(head[1], f"machine {head[1]}")
        self._phoff, self._shoff = head[4], head[5]
        self._phnum, self._shnum, self._shstrndx = head[9], head[11], head[12]

    @cached_property
    def interpreter(self) -> str | None:
        """The dynamic loader that a program asks for."""
        for kind, _, offset, _, size in self._segments:
            if kind == _INTERP:
                return _text(self._bytes(offset, size), 0)
        return None

    @property
    def soname(self) -> str | None:
        """DT_SONAME."""
        return next(iter(self._strings_of(_SONAME)), None)

    @property
    def needed(self) -> tuple[str, ...]:
        """DT_NEEDED, in order."""
        return self._strings_of(_NEEDED)

    @property
    def runpath(self) -> tuple[str, ...]:
        """DT_RUNPATH, or DT_RPATH where there is none, split at colons."""
        paths = self._strings_of(_RUNPATH) or self._strings_of(_RPATH)
        return tuple(part for path in paths for part in path.split(":") if part)

    @cached_property
    def version_needs(self) -> tuple[tuple[str, str], ...]:
        """Each versioned library it needs, with each version: ``("libc.so.6", "GLIBC_2.34")``."""
        found: list[tuple[str, str]] = []
        at = self._address(_VERNEED)
        for _ in range(self._count(_VERNEEDNUM)):
            _, count, library, aux, following = self._at("HHIII", at)
            where = at + aux
            for _ in range(min(count, 4096)):
                _, _, _, name, step = self._at("IHHII", where)
                found.append((self._string(library), self._string(name)))
                where += step
            at += following
        return tuple(found)

    @cached_property
    def version_definitions(self) -> tuple[str, ...]:
        """The versions that it defines, its own name first, in the file's order."""
        found: list[str] = []
        at = self._address(_VERDEF)
        for _ in range(self._count(_VERDEFNUM)):
            _, _, _, _, _, aux, following = self._at("HHHHIII", at)
            found.append(self._string(self._at("II", at + aux)[0]))
            at += following
        return tuple(found)

    @cached_property
    def symbols(self) -> dict[str, Symbol]:
        """The dynamic symbols by name; a definition wins over another version's."""
        count = self._symbol_count()
        if not count:
            return {}
        table = self._load(self._address(_SYMTAB), count * 24)
        found: dict[str, Symbol] = {}
        for name, _, _, section, address, size in struct.iter_unpack(self._order + "IBBHQQ", table):
            if name:
                text = self._string(name)
                if section or text not in found:
                    found[text] = Symbol(address, size, bool(section))
        return found

    def value(self, symbol: str) -> str | None:
        """Return the text that a defined data symbol points at; None where there is none."""
        entry = self.symbols.get(symbol)
        if entry is None or not entry.defined or not 0 < entry.size < 1 << 16:
            return None
        return _text(self._load(entry.address, entry.size), 0)

    @cached_property
    def constants(self) -> bytes:
        """The read-only data: ``.rodata``, or all loaded segments that may be neither written
        nor, where there are such, executed.
        """
        for name, offset, size in self._sections():
            if name == ".rodata":
                return self._bytes(offset, size)
        loads = [(flags, offset, size) for kind, flags, offset, _, size in self._segments_rw]
        plain = [entry for entry in loads if not entry[0] & 1] or loads
        return b"\0".join(self._bytes(offset, size) for _, offset, size in plain)

    def texts(self, pattern: bytes) -> list[str]:
        """Return the whole NUL-ended strings of the read-only data that match a pattern."""
        expression = re.compile(rb"(?<=\0)(?:" + pattern + rb")(?=\0)")
        return [
            match[0].decode(errors="replace")
            for match in expression.finditer(b"\0" + self.constants + b"\0")
        ]

    # -- below: bytes, addresses, tables ----------------------------------------------------------

    def _bytes(self, offset: int, size: int) -> bytes:
        if size > _MAX_TABLE:
            raise ValueError(f"damaged ELF file: a part of {size} bytes")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("damaged ELF file: it is cut short")
        return data

    def _unpack(self, shape: str, data: bytes) -> tuple[int, ...]:
        return struct.unpack(self._order + shape, data)

    @cached_property
    def _segments(self) -> list[tuple[int, int, int, int, int]]:
        """Type, flags, offset, address, size in the file."""
        table = self._bytes(self._phoff, self._phnum * 56)
        rows = struct.iter_unpack(self._order + "IIQQQQQQ", table)
        return [
            (kind, flags, off, address, size) for kind, flags, off, address, _, size, _, _ in rows
        ]

    @property
    def _segments_rw(self) -> list[tuple[int, int, int, int, int]]:
        return [entry for entry in self._segments if entry[0] == _LOAD and not entry[1] & 2]

    def _sections(self) -> list[tuple[str, int, int]]:
        if not self._shoff or not self._shnum:
            return []
        table = self._bytes(self._shoff, self._shnum * 64)
        rows = list(struct.iter_unpack(self._order + "IIQQQQIIQQ", table))
        if self._shstrndx >= len(rows):
            return []
        names = self._bytes(rows[self._shstrndx][4], rows[self._shstrndx][5])
        no_bits = 8
        return [(_text(names, row[0]), row[4], row[5]) for row in rows if row[1] != no_bits]

    def _load(self, address: int, size: int) -> bytes:
        for kind, _, offset, start, length in self._segments:
            if kind == _LOAD and start <= address and address + size <= start + length:
                return self._bytes(offset + address - start, size)
        raise ValueError(f"damaged ELF file: no segment holds address {address:#x}")

    def _at(self, shape: str, address: int) -> tuple[int, ...]:
        return self._unpack(shape, self._load(address, struct.calcsize("=" + shape)))

    @cached_property
    def _dynamic(self) -> list[tuple[int, int]]:
        for kind, _, offset, _, size in self._segments:
            if kind == _DYNAMIC:
                table = self._bytes(offset, size - size % 16)
                entries = list(struct.iter_unpack(self._order + "qQ", table))
                end = next((i for i, (tag, _) in enumerate(entries) if tag == 0), len(entries))
                return [(tag, value) for tag, value in entries[:end]]
        return []

    def _tag(self, tag: int) -> int | None:
        return next((value for key, value in self._dynamic if key == tag), None)

    def _address(self, tag: int) -> int:
        return self._tag(tag) or 0

    def _count(self, tag: int) -> int:
        return min(self._tag(tag) or 0, 4096)

    @cached_property
    def _strings(self) -> bytes:
        return self._load(self._address(_STRTAB), self._address(_STRSZ))

    def _string(self, offset: int) -> str:
        return _text(self._strings, offset)

    def _strings_of(self, tag: int) -> tuple[str, ...]:
        return tuple(self._string(value) for key, value in self._dynamic if key == tag)

    def _symbol_count(self) -> int:
        """The table's length stands nowhere; the hash tables, which index it, tell."""
        if hashed := self._tag(_HASH):
            return self._at("II", hashed)[1]
        hashed = self._tag(_GNU_HASH)
        if not hashed:
            return 0
        buckets, first, bloom, _ = self._at("IIII", hashed)
        at = hashed + 16 + 8 * bloom
        last = max(self._unpack(f"{buckets}I", self._load(at, 4 * buckets)), default=0)
        if last < first:
            return first
        at += 4 * buckets
        # The last chain ends at the first entry whose lowest bit is set.
        while not self._at("I", at + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start : end if end >= 0 else len(data)].decode(errors="replace")
