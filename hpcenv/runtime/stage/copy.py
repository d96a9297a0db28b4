"""Staging a tree: every node gets a copy, and every byte is read once over all ranks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcenv.base.errors import BadInput, Outside
from hpcenv.runtime.console import Progress
from hpcenv.runtime.ranks import Ranks, receivers, together
from hpcenv.runtime.stage import manifest, transfer
from hpcenv.runtime.stage.manifest import Entry
from hpcenv.runtime.stage.place import Place


@dataclass(frozen=True)
class Copied:
    """What a staging did.

    Attributes
    ----------
    folder : str
        Where this node's copy lies.
    files, folders, links, bytes : int
        What the tree holds, its root not counted.
    bytes_read : int
        Read from the source, over all ranks: the bytes of the files that some node lacked.
    files_read : int
        How many those were.
    nodes, ranks : int
        That took part.
    seconds : float
        Wall-clock time.
    """

    schema: Literal[1]
    folder: str
    files: int
    folders: int
    links: int
    bytes: int
    bytes_read: int
    files_read: int
    nodes: int
    ranks: int
    seconds: float


def copy(source: Path, target: Path, ranks: Ranks, chunk: int = transfer.CHUNK) -> Copied:
    """Copy a tree to every node; all ranks call it.

    Parameters
    ----------
    source : Path
        A folder that every rank sees.
    target : Path
        Where each node's copy is to lie; it appears whole or not at all. What an interrupted
        staging left beside it and is right is not read again.
    ranks : Ranks
    chunk : int
        Bytes a message holds at most.

    Raises
    ------
    Agreed
        On every rank, naming those that failed: bad input, no room.
    Failure, OSError
        On the rank that met it, while data moves: the caller ends all ranks.
    """
    return _place(source, target, _listed(source, ranks), ranks, chunk)


def stage_for_node(source: Path, ranks: Ranks) -> Copied:
    """Copy a tree to a folder of the node that its content names, below ``TMPDIR``."""
    entries = _listed(source, ranks)
    base = together(ranks, _private_folder)
    name = f"{source.resolve().name}-{manifest.key(entries)[:16]}"
    return _place(source, base / name, entries, ranks, transfer.CHUNK)


def _private_folder() -> Path:
    base = Path(os.environ.get("TMPDIR", "/tmp")) / f"hpcenv-{os.getuid()}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise Outside("it belongs to somebody else", where=str(base), remedy="set TMPDIR")
    return base


def _listed(source: Path, ranks: Ranks) -> list[Entry]:
    def look() -> list[Entry]:
        return manifest.scan(source) if ranks.rank == 0 else []

    return ranks.broadcast(together(ranks, look))


def _place(
    source: Path, target: Path, entries: Sequence[Entry], ranks: Ranks, chunk: int
) -> Copied:
    began = time.monotonic()
    target = Path(os.path.abspath(target))
    together(ranks, lambda: _see_apart(source, target))
    one_a_node = ranks.gather(str(target))
    together(ranks, lambda: _see_same(one_a_node, ranks))

    receives = ranks.rank in receivers(ranks.nodes)
    place = together(ranks, lambda: Place(target, entries) if receives else None)
    try:
        together(ranks, lambda: place.check_capacity() if place else None)
        lacking = ranks.gather(place.missing() if place else [])
        needed: dict[int, list[int]] = {}
        for rank, files in enumerate(lacking):
            for index in files:
                needed.setdefault(index, []).append(rank)
        sizes = {index: entries[index].size for index in needed}
        shares = transfer.assign(sizes, ranks.size)
        mine = shares[ranks.rank]
        incoming = len(lacking[ranks.rank]) - sum(ranks.rank in needed[i] for i in mine)

        reader = transfer.Reader(source, entries)
        progress = Progress(
            f"staging {source.name}", sum(sizes[i] for i in mine), quiet=ranks.rank != 0
        )
        transfer.transfer(
            reader,
            mine,
            needed,
            place,
            incoming,
            ranks,
            chunk,
            lambda _: progress.at(reader.bytes_read),
        )
        progress.clear()
        known = {i: entry.sha256 for i, entry in place.have.items()} if place else {}
        everywhere = ranks.gather((known, reader.digests, reader.bytes_read))
        digests = together(ranks, lambda: _merged([pair[:2] for pair in everywhere], entries))
        together(ranks, lambda: place.publish(digests) if place else None)
    finally:
        if place:
            place.close()
    return Copied(
        schema=1,
        folder=str(target),
        files=sum(entry.kind == "file" for entry in entries),
        folders=sum(e.kind == "folder" and e.path != manifest.ROOT for e in entries),
        links=sum(entry.kind == "link" for entry in entries),
        bytes=sum(entry.size for entry in entries),
        bytes_read=sum(count for _, _, count in everywhere),
        files_read=len(needed),
        nodes=len(set(ranks.nodes)),
        ranks=ranks.size,
        seconds=round(time.monotonic() - began, 3),
    )


def _see_apart(source: Path, target: Path) -> None:
    inner, outer = os.path.realpath(target), os.path.realpath(source)
    if inner == outer or inner.startswith(outer + os.sep) or outer.startswith(inner + os.sep):
        raise BadInput(
            "source and copy lie one in the other", where=f"{source}, {target}", remedy="choose"
        )


def _see_same(targets: Sequence[str], ranks: Ranks) -> None:
    here = ranks.nodes[ranks.rank]
    of_node = {t for t, node in zip(targets, ranks.nodes, strict=True) if node == here}
    if len(of_node) > 1:
        raise BadInput(
            f"its ranks want the copy in different folders: {', '.join(sorted(of_node))}",
            where=f"node {here}",
            remedy="give every rank of a node the same folder (and TMPDIR)",
        )


def _merged(
    found: Sequence[tuple[Mapping[int, str | None], Mapping[int, str]]], entries: Sequence[Entry]
) -> dict[int, str]:
    digests: dict[int, str] = {}
    for kept, read in found:
        for index, sha256 in [*kept.items(), *read.items()]:
            if sha256 and digests.setdefault(index, sha256) != sha256:
                raise Outside(
                    "nodes hold different content under the same size and time",
                    where=entries[index].path,
                    remedy="remove the copies and stage again",
                )
    return digests
