"""Checkpoints: whole or not there, and the newest whole one is the one to go on from."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcenv.base import record
from hpcenv.base.publish import publish, sweep
from hpcenv.runtime.train.digest import digest

Array = npt.NDArray[Any]
KEEP = 2


@dataclass(frozen=True)
class State:
    """Where a run is.

    Attributes
    ----------
    seen : int
        Samples seen since the start: the whole state of the order.
    steps : int
        Optimizer steps taken.
    ranks : int
        How many ranks took them.
    sha256 : str
        Of the arrays that go with it.
    """

    schema: int
    seen: int
    steps: int
    ranks: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A state and its arrays: weights, then the optimizer's slots."""

    state: State
    arrays: tuple[Array, ...]


def save(folder: Path, seen: int, steps: int, ranks: int, arrays: Sequence[Array]) -> Path:
    """Write a checkpoint, and then remove all but the newest two."""
    state = State(1, seen, steps, ranks, digest(arrays))
    buffer = io.BytesIO()
    named: dict[str, Any] = {f"array_{i:05}": array for i, array in enumerate(arrays)}
    named["state"] = np.frombuffer(record.dump_json(state).encode(), np.uint8)
    np.savez(buffer, **named)
    file = folder / f"seen-{seen:015}.npz"
    with publish(file) as beside:
        beside.write_bytes(buffer.getbuffer())
    for old in _files(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    sweep(folder)
    return file


def newest(folder: Path, tell: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest checkpoint that is whole; say which were passed over."""
    for file in _files(folder):
        try:
            return load(file)
        except Exception as error:  # what a damaged archive raises is not to be foreseen
            tell(f"{file} is damaged and passed over: {error}")
    return None


def load(file: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises
    ------
    Exception
        Of many kinds, if it is not whole: the digest of its arrays is compared with the one it
        carries.
    """
    with np.load(file, allow_pickle=False) as archive:
        text = archive["state"].tobytes().decode()
        state = record.parse_json(State, text, str(file))
        names = sorted(name for name in archive.files if name != "state")
        arrays = tuple(archive[name] for name in names)
    found = digest(arrays)
    if found != state.sha256:
        raise ValueError(f"its arrays have the digest {found}, it says {state.sha256}")
    return Checkpoint(state, arrays)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("seen-*.npz"), reverse=True)
