"""Words for people about a run: its result, its log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hpcenv.base.errors import BadInput
from hpcenv.runtime.train import folder, log


def text(result: folder.Result, where: Path) -> str:
    """Sum up a finished run."""
    each = "rank" if result.ranks == 1 else "ranks"
    node = "node" if result.nodes == 1 else "nodes"
    lines = [
        f"{result.name}: finished",
        f"  accuracy   {result.accuracy:.1%} of {result.held_out:,} held-out samples",
        f"  speed      {result.samples_per_s:,.0f} samples/s on {result.ranks} {each}, "
        f"{result.nodes} {node}, {result.threads_per_rank} thread(s) a rank",
        f"  steps      {result.steps:,} in {result.epochs} epochs, {result.precision}",
    ]
    if result.ranks > 1:
        lines.append(
            f"  exchange   by {result.collective}: the mean gradient is off by "
            f"{result.exchange.error:.1e} (one rank alone: {result.exchange.spread:.1e})"
        )
        lines.append(f"  weights    equal on all ranks: {result.weights_sha256[:16]}")
    if result.bytes_staged:
        lines.append(
            f"  data       {result.bytes_staged:,} bytes staged, "
            f"{result.bytes_read:,} read from the source"
        )
    lines.append(f"  results    {where / folder.RESULT}")
    return "\n".join(lines)


State: TypeAlias = Literal["finished", "stopped", "unfinished"]


@dataclass(frozen=True)
class Report:
    """What a log tells of a run, finished or not.

    Attributes
    ----------
    state : {"finished", "stopped", "unfinished"}
        ``unfinished``: it runs now, or was killed.
    starts : int
        How often it was started or went on.
    epochs : tuple
        The log's line of each epoch.
    result : Result or None
        Of a finished run.
    """

    schema: Literal[1]
    state: State
    starts: int
    seen: int
    steps: int
    epochs: tuple[Any, ...] = ()
    result: folder.Result | None = None


def report(where: Path) -> Report:
    """Read the log of a run.

    Raises
    ------
    BadInput
        If there is none.
    """
    if not (where / log.NAME).is_file():
        raise BadInput(
            f"there is no {log.NAME}", where=str(where), remedy="hpcenv-train report runs/NAME"
        )
    entries = list(log.read(where))
    last = entries[-1]["event"] if entries else ""
    ends: dict[str, State] = {"finished": "finished", "stopped": "stopped"}
    counted = [entry for entry in entries if "seen" in entry]
    return Report(
        schema=1,
        state=ends.get(last, "unfinished"),
        starts=sum(entry["event"] == "start" for entry in entries),
        seen=counted[-1]["seen"] if counted else 0,
        steps=max((e.get("step", e.get("steps", 0)) for e in entries), default=0),
        epochs=tuple(entry for entry in entries if entry["event"] == "epoch"),
        result=folder.read_result(where) if last == "finished" else None,
    )


def words(found: Report, where: Path) -> str:
    """Say what a log tells."""
    if found.result:
        return text(found.result, where)
    lines = [f"{where}: {found.state} after {found.seen:,} samples, {found.steps:,} steps"]
    for epoch in found.epochs[-1:]:
        lines.append(
            f"  epoch {epoch['epoch']}: loss {epoch['loss']:.4f}, "
            f"held out {epoch['held_out_accuracy']:.1%}"
        )
    lines.append("  the same hpcenv-train run goes on")
    return "\n".join(lines)
