"""The folder of a run: who may write in it, and whether the run is new, goes on, or is over."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hpcenv.base import record
from hpcenv.base.errors import BadInput
from hpcenv.base.publish import publish
from hpcenv.runtime.train.settings import Settings, same_run

SETTINGS = "settings.json"
RESULT = "result.json"
CHECKPOINTS = "checkpoints"
LOCK = ".lock"
Standing = Literal["new", "going on", "finished"]


@dataclass(frozen=True)
class Exchange:
    """How the exchange of gradients was checked before the first step.

    Attributes
    ----------
    error : float
        Largest difference of an exchanged mean from the float64 mean, over the largest mean.
    spread : float
        The same for this rank's own gradient: what a missing exchange would have left.
    """

    error: float
    spread: float


@dataclass(frozen=True)
class Result:
    """How a finished run ended.

    Attributes
    ----------
    accuracy : float
        ``correct / held_out``, from 0 to 1.
    loss : float
        Mean over the held-out samples.
    samples_per_s : float
        Over all ranks, in training steps only, without the first (which compiles).
    seconds : float
        Wall-clock time of the last process of this run, from its start.
    resumed_from : int or None
        Samples that had been seen when that process took over.
    """

    schema: Literal[1]
    name: str
    model: str
    collective: str
    precision: str
    ranks: int
    nodes: int
    threads_per_rank: int
    epochs: int
    steps: int
    seen: int
    correct: int
    held_out: int
    accuracy: float
    loss: float
    samples_per_s: float
    seconds: float
    weights_sha256: str
    exchange: Exchange
    bytes_staged: int
    bytes_read: int
    resumed_from: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


def prepare(folder: Path, settings: Settings, fresh: bool) -> Standing:
    """Make the folder of a run ready and keep others out of it until this process ends; on rank 0.

    Parameters
    ----------
    folder : Path
        Made when it is not there.
    settings : Settings
        Those of this run; written into the folder.
    fresh : bool
        Put an earlier run aside (``NAME.1``, ``NAME.2`` …) and begin anew.

    Raises
    ------
    BadInput
        If the folder holds a run with other settings, or something else, or if another run writes
        there now.
    """
    file = folder / SETTINGS
    if (
        folder.exists()
        and not file.exists()
        and any(path.name != LOCK for path in folder.iterdir())
    ):
        raise BadInput(
            "it is not empty and holds no run", where=str(folder), remedy="-o ANOTHER_FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _lock(folder)
    if fresh and file.exists():
        folder.rename(_aside(folder))
        folder.mkdir()
        _lock(folder)
    standing = _standing(folder, settings)
    if standing != "finished":
        (folder / CHECKPOINTS).mkdir(exist_ok=True)
        # The result of fewer epochs is no longer this run's.
        (folder / RESULT).unlink(missing_ok=True)
        with publish(file) as beside:
            beside.write_text(record.dump_json(settings), "utf-8")
    return standing


def _standing(folder: Path, settings: Settings) -> Standing:
    if not any((folder / CHECKPOINTS).glob("*.npz")):
        return "new"  # whatever was begun here saved nothing
    old = record.load_json(Settings, folder / SETTINGS)
    if apart := same_run(old, settings):
        raise BadInput(
            "it holds a run with other settings:\n    " + "\n    ".join(apart),
            where=str(folder),
            remedy="-o ANOTHER_FOLDER, or --fresh to put that run aside",
        )
    over = (folder / RESULT).exists() and old.epochs >= settings.epochs
    return "finished" if over else "going on"


def _aside(folder: Path) -> Path:
    number = 1
    while (path := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return path


def _lock(folder: Path) -> None:
    # The handle stays open, and with it the lock, for as long as the process lives.
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            return  # some parallel file systems are mounted without locks
        raise BadInput(
            "another run is writing there now", where=str(folder), remedy="-o ANOTHER_FOLDER"
        ) from None


def write_result(folder: Path, result: Result) -> None:
    """Write the result, whole or not at all."""
    with publish(folder / RESULT) as beside:
        beside.write_text(record.dump_json(result), "utf-8")


def read_result(folder: Path) -> Result:
    """Read the result of a finished run."""
    return record.load_json(Result, folder / RESULT)
