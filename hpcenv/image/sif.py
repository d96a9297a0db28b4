"""The Singularity Image Format: a header, a table of descriptors, and the data they point to.

Reader and writer share these structures. All numbers are little-endian and packed, as the format's
reference implementation writes them: a header of 128 bytes, descriptors of 585 bytes each.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, BinaryIO

MAGIC = b"SIF_MAGIC\0"
VERSION = b"01\0"
LAUNCH = b"#!/usr/bin/env run-singularity\n"
ARCHES = {"x86_64": b"02\0", "aarch64": b"04\0", "ppc64le": b"06\0", "riscv64": b"12\0"}
"""The format's architecture codes, by `uname -m`."""

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR = struct.Struct("<i?III7q128s384s")
_PARTITION = struct.Struct("<ii3s")
HEADER_SIZE = _HEADER.size
DESCRIPTOR_SIZE = _DESCRIPTOR.size
MAX_DESCRIPTORS = 4096
"""More than any image has; a header that claims more is not believed."""


class DataType(IntEnum):
    """What a descriptor points to."""

    DEFINITION = 0x4001
    ENVIRONMENT = 0x4002
    LABELS = 0x4003
    PARTITION = 0x4004
    SIGNATURE = 0x4005
    GENERIC_JSON = 0x4006
    GENERIC = 0x4007
    CRYPTO_MESSAGE = 0x4008
    SBOM = 0x4009
    OCI_ROOT_INDEX = 0x400A
    OCI_BLOB = 0x400B


class FsType(IntEnum):
    """The file system of a partition."""

    SQUASHFS = 1
    EXT3 = 2
    ARCHIVE = 3
    RAW = 4
    ENCRYPTED_SQUASHFS = 5


class PartType(IntEnum):
    """The use of a partition."""

    SYSTEM = 1
    PRIMARY = 2
    DATA = 3
    OVERLAY = 4


@dataclass(frozen=True)
class Header:
    """The first 128 bytes; times in seconds since 1970, offsets and sizes in bytes."""

    arch: bytes
    id: uuid.UUID
    created: int
    modified: int
    descriptors_free: int
    descriptors_total: int
    descriptors_offset: int
    descriptors_size: int
    data_offset: int
    data_size: int
    launch: bytes = LAUNCH

    def pack(self) -> bytes:
        """Return the header as it lies in the file."""
        return _HEADER.pack(
            self.launch,
            MAGIC,
            VERSION,
            self.arch,
            self.id.bytes,
            self.created,
            self.modified,
            self.descriptors_free,
            self.descriptors_total,
            self.descriptors_offset,
            self.descriptors_size,
            self.data_offset,
            self.data_size,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Read a header.

        Raises
        ------
        ValueError
            If it is cut short, or not a SIF's.
        """
        if len(data) < HEADER_SIZE:
            raise ValueError(f"{len(data)} bytes, where a SIF header has {HEADER_SIZE}")
        launch, magic, version, arch, identity, *numbers = _HEADER.unpack(data[:HEADER_SIZE])
        if magic != MAGIC:
            raise ValueError("it has no SIF magic")
        if version != VERSION:
            raise ValueError(f"SIF version {version.rstrip(bytes(1))!r} is not known here")
        fields: list[Any] = [arch, uuid.UUID(bytes=identity), *numbers, launch.rstrip(b"\0")]
        return cls(*fields)


@dataclass(frozen=True)
class Descriptor:
    """One entry of the table.

    Attributes
    ----------
    offset, size, padded : int
        Where the data lies, its length, and its length with the alignment before it, in bytes.
    extra : bytes
        What its type needs more; a `Partition` for a partition.
    """

    type: int
    id: int
    group: int
    link: int
    offset: int
    size: int
    padded: int
    created: int
    modified: int
    uid: int
    gid: int
    name: str
    extra: bytes = b""
    used: bool = True

    def pack(self) -> bytes:
        """Return the descriptor as it lies in the file."""
        return _DESCRIPTOR.pack(
            self.type,
            self.used,
            self.id,
            self.group,
            self.link,
            self.offset,
            self.size,
            self.padded,
            self.created,
            self.modified,
            self.uid,
            self.gid,
            self.name.encode(),
            self.extra,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Descriptor:
        """Read a descriptor of `DESCRIPTOR_SIZE` bytes."""
        kind, used, *numbers, name, extra = _DESCRIPTOR.unpack(data)
        text = name.split(b"\0", 1)[0].decode(errors="replace")
        fields: list[Any] = [kind, *numbers, text, extra, used]
        return cls(*fields)


@dataclass(frozen=True)
class Partition:
    """The extra part of a partition's descriptor."""

    fs: int
    use: int
    arch: bytes

    def pack(self) -> bytes:
        """Return the bytes for `Descriptor.extra`."""
        return _PARTITION.pack(self.fs, self.use, self.arch)

    @classmethod
    def unpack(cls, extra: bytes) -> Partition:
        """Read the extra part of a descriptor."""
        return cls(*_PARTITION.unpack(extra[: _PARTITION.size]))


def read_descriptors(file: BinaryIO) -> tuple[Header, tuple[Descriptor, ...]]:
    """Read header and descriptors of a SIF; unused table entries are left out.

    Raises
    ------
    ValueError
        If the file is not a SIF, or is cut short.
    """
    file.seek(0)
    header = Header.unpack(file.read(HEADER_SIZE))
    if not 0 < header.descriptors_total <= MAX_DESCRIPTORS:
        raise ValueError(f"its header claims {header.descriptors_total} descriptors")
    if header.descriptors_offset < HEADER_SIZE:
        raise ValueError("its descriptors would lie within its header")
    file.seek(header.descriptors_offset)
    table = file.read(header.descriptors_total * DESCRIPTOR_SIZE)
    if len(table) < header.descriptors_total * DESCRIPTOR_SIZE:
        raise ValueError("it ends within its table of descriptors")
    entries = (
        Descriptor.unpack(table[start : start + DESCRIPTOR_SIZE])
        for start in range(0, len(table), DESCRIPTOR_SIZE)
    )
    return header, tuple(entry for entry in entries if entry.used)


def primary_partition(descriptors: tuple[Descriptor, ...]) -> Descriptor:
    """Return the descriptor of the root file system.

    Raises
    ------
    ValueError
        If there is none.
    """
    for entry in descriptors:
        if entry.type == DataType.PARTITION:
            partition = Partition.unpack(entry.extra)
            if partition.use == PartType.PRIMARY:
                return entry
    raise ValueError("it has no primary system partition")
