"""Reading files and passing them to one rank of each node, in bounded pieces.

Each rank reads its files piece by piece into a few buffers; a buffer goes to every receiver that
lacks the file by a synchronous send, so that it is free again only when all have taken it. Nothing
is ever kept for a receiver that is slow: its readers wait.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcenv.base.errors import Outside
from hpcenv.runtime.ranks import MpiRanks, Ranks, who
from hpcenv.runtime.stage.manifest import Entry
from hpcenv.runtime.stage.place import Place

CHUNK = 16 << 20
WINDOW = 3
STALL_S = 600.0
_TAG = 71
_HEAD = struct.Struct("<QQ?32s")
_FILE_COST = 64 << 10


def assign(sizes: Mapping[int, int], ranks: int) -> list[list[int]]:
    """Share files out to ranks: the largest first, each to the rank with least so far.

    Parameters
    ----------
    sizes : mapping of int to int
        Bytes by file.
    ranks : int

    Returns
    -------
    list of list of int
        The files of each rank, in their own order. Graham (1969): the fullest rank has at most
        4/3 of what the best sharing would give it.
    """
    heap = [(0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for index in sorted(sizes, key=lambda i: (-sizes[i], i)):
        load, rank = heapq.heappop(heap)
        shares[rank].append(index)
        # Opening a file costs about as much as reading some tens of KiB.
        heapq.heappush(heap, (load + sizes[index] + _FILE_COST, rank))
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Piece:
    """A piece of a file, in a buffer that starts with its head."""

    index: int
    offset: int
    sha256: str | None
    payload: memoryview


def pack(index: int, offset: int, sha256: str | None, head: memoryview) -> None:
    """Write the head of a piece; the digest goes with the last piece of a file."""
    digest = bytes.fromhex(sha256) if sha256 else bytes(32)
    _HEAD.pack_into(head, 0, index, offset, sha256 is not None, digest)


def unpack(message: memoryview) -> Piece:
    """Read a piece from a message."""
    index, offset, last, digest = _HEAD.unpack_from(message)
    return Piece(index, offset, digest.hex() if last else None, message[_HEAD.size :])


class Reader:
    """Reads files once, and counts every byte.

    Attributes
    ----------
    bytes_read : int
        From the source, so far.
    digests : dict of int to str
        Of the files read to their end.
    """

    def __init__(self, source: Path, entries: Sequence[Entry]) -> None:
        self.source = source
        self.entries = entries
        self.bytes_read = 0
        self.digests: dict[int, str] = {}

    def pieces(self, files: Sequence[int], take: Callable[[], memoryview]) -> Iterator[int]:
        """Fill the buffer that `take` gives with one piece after another; yield their lengths.

        Raises
        ------
        Outside
            If a file is no longer what it was when the tree was listed.
        """
        for index in files:
            entry = self.entries[index]
            state = hashlib.sha256()
            offset = 0
            with (self.source / entry.path).open("rb", buffering=0) as stream:
                while True:
                    buffer = take()
                    room = min(len(buffer) - _HEAD.size, entry.size - offset)
                    payload = buffer[_HEAD.size : _HEAD.size + room]
                    self._fill(stream, payload, entry)
                    state.update(payload)
                    last = offset + room == entry.size
                    if last:
                        self._see_unchanged(stream.fileno(), entry)
                        self.digests[index] = state.hexdigest()
                    pack(index, offset, self.digests.get(index) if last else None, buffer)
                    offset += room
                    yield _HEAD.size + room
                    if last:
                        break

    def _fill(self, stream: Any, payload: memoryview, entry: Entry) -> None:
        filled = 0
        while filled < len(payload):
            count = stream.readinto(payload[filled:])
            if not count:
                raise self._changed(entry)
            filled += count
            self.bytes_read += count

    def _see_unchanged(self, handle: int, entry: Entry) -> None:
        about = os.fstat(handle)
        if (about.st_size, about.st_mtime_ns) != (entry.size, entry.mtime_ns):
            raise self._changed(entry)

    def _changed(self, entry: Entry) -> Outside:
        return Outside(
            "it was changed while it was staged",
            where=str(self.source / entry.path),
            remedy="stage again when nothing writes to the source",
        )


def transfer(
    reader: Reader,
    files: Sequence[int],
    needed: Mapping[int, Sequence[int]],
    place: Place | None,
    incoming: int,
    ranks: Ranks,
    chunk: int,
    tell: Callable[[int], None],
) -> None:
    """Read this rank's files and pass them on; take what comes for this node.

    Parameters
    ----------
    reader : Reader
    files : sequence of int
        Those this rank reads.
    needed : mapping of int to sequence of int
        The receiving ranks that lack each file.
    place : Place or None
        This node's copy, on its receiving rank.
    incoming : int
        How many files other ranks will send here.
    chunk : int
        Bytes a piece has at most.
    tell : callable
        Gets the number of bytes that were just read here.

    Raises
    ------
    Outside
        Also if nothing moved for `STALL_S` seconds.
    """
    largest = max((reader.entries[i].size for i in files), default=0)
    room = _HEAD.size + max(1, min(chunk, largest))
    free = [memoryview(bytearray(room)) for _ in range(WINDOW if files else 0)]
    taken: list[memoryview] = []

    def take() -> memoryview:
        taken.append(free.pop())
        return taken[-1]

    mail = _Mail(ranks)
    pieces = reader.pieces(files, take)
    reading = bool(files)
    moved = time.monotonic()
    while reading or mail.sending or incoming:
        before = moved
        for buffer in mail.done():
            free.append(buffer)
            moved = time.monotonic()
        if reading and free:
            length = next(pieces, None)
            if length is None:
                reading = False
            else:
                buffer = taken.pop()
                piece = unpack(buffer[:length])
                others = [rank for rank in needed[piece.index] if rank != ranks.rank]
                if place and ranks.rank in needed[piece.index]:
                    place.write(piece.index, piece.offset, piece.payload, piece.sha256)
                if others:
                    mail.send(buffer, length, others)
                else:
                    free.append(buffer)
                tell(len(piece.payload))
            moved = time.monotonic()
        while incoming and place and (message := mail.receive()) is not None:
            piece = unpack(message)
            place.write(piece.index, piece.offset, piece.payload, piece.sha256)
            incoming -= piece.sha256 is not None
            moved = time.monotonic()
        if moved == before:
            if time.monotonic() - moved > STALL_S:
                raise _stalled(mail, incoming, ranks)
            time.sleep(0.0002)


def _stalled(mail: _Mail, incoming: int, ranks: Ranks) -> Outside:
    waits = []
    if mail.sending:
        waits.append(f"{who(mail.waiting_for(), ranks.nodes)} to take a piece")
    if incoming:
        waits.append(f"{incoming} file(s) from other ranks")
    return Outside(f"nothing moved for {STALL_S:.0f} s while waiting for {' and '.join(waits)}")


class _Mail:
    """Pieces between ranks; without MPI there are none."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks if isinstance(ranks, MpiRanks) else None
        self._sent: list[tuple[memoryview, list[tuple[int, Any]]]] = []
        self._buffer = bytearray()

    @property
    def sending(self) -> bool:
        return bool(self._sent)

    def waiting_for(self) -> list[int]:
        return sorted({rank for _, requests in self._sent for rank, _ in requests})

    def send(self, buffer: memoryview, length: int, to: Sequence[int]) -> None:
        assert self._ranks is not None
        world, byte = self._ranks.world, self._ranks.mpi.BYTE
        requests = [(rank, world.Issend([buffer[:length], byte], rank, _TAG)) for rank in to]
        self._sent.append((buffer, requests))

    def done(self) -> list[memoryview]:
        """The buffers that every receiver has taken."""
        free = []
        still = []
        for buffer, requests in self._sent:
            left = [(rank, request) for rank, request in requests if not request.Test()]
            if left:
                still.append((buffer, left))
            else:
                free.append(buffer)
        self._sent = still
        return free

    def receive(self) -> memoryview | None:
        """A message that has come, or None; it is valid until the next one."""
        if self._ranks is None:
            return None
        mpi, world = self._ranks.mpi, self._ranks.world
        status = mpi.Status()
        message = world.Improbe(mpi.ANY_SOURCE, _TAG, status)
        if message is None:
            return None
        length = status.Get_count(mpi.BYTE)
        if len(self._buffer) < length:
            self._buffer = bytearray(length)
        message.Recv([self._buffer, length, mpi.BYTE])
        return memoryview(self._buffer)[:length]
