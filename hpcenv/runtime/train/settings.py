"""The settings of a run, as they are written in TOML."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from hpcenv.base import record
from hpcenv.base.errors import BadFile, BadInput, Problem
from hpcenv.runtime.train.optimizers import Adam, Sgd
from hpcenv.runtime.train.schedule import LearningRate


@dataclass(frozen=True)
class Data:
    """What is learnt from.

    Attributes
    ----------
    name : {"digits"}
        The kind of data.
    folder : str
        Where its files lie.
    stage : bool
        Whether they are first copied to a folder of the node (below ``TMPDIR``), each byte read
        once over all ranks.
    """

    name: Literal["digits"] = "digits"
    folder: str = "/usr/share/hpcenv/data/digits"
    stage: bool = True


@dataclass(frozen=True)
class Every:
    """How often things are done, in steps."""

    log: int = 20
    checkpoint: int = 200
    digest: int = 100

    def __post_init__(self) -> None:
        if min(self.log, self.checkpoint, self.digest) < 1:
            raise ValueError("each of 'log', 'checkpoint' and 'digest' is at least 1")


@dataclass(frozen=True)
class Settings:
    """A run, whole.

    Attributes
    ----------
    name : str
        Names the folder of results.
    model : str
        One of `hpcenv.runtime.models.MODELS`.
    collective : {"horovod", "mpi4py", "single"}
        What exchanges the gradients.
    precision : {"float32", "mixed_bfloat16"}
        What layers compute in. Weights, logits, loss, gradients and their exchange are float32
        in both.
    epochs : int
        Passes over the training samples.
    batch_per_rank : int
        Samples a rank takes a step; the global batch is this times the number of ranks.
    seed : int
        Of weights and sample order.
    deterministic : bool
        Operations that give the same bits each time, on one thread a rank; slower.
    """

    schema: Literal[1]
    name: str
    model: Literal["digits-cnn", "mlp"]
    collective: Literal["horovod", "mpi4py", "single"] = "horovod"
    precision: Literal["float32", "mixed_bfloat16"] = "float32"
    epochs: int = 8
    batch_per_rank: int = 32
    seed: int = 1
    deterministic: bool = False
    data: Data = field(default_factory=Data)
    optimizer: Sgd | Adam = field(default_factory=Sgd)
    learning_rate: LearningRate = field(default_factory=LearningRate)
    every: Every = field(default_factory=Every)

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or self.name in (".", ".."):
            raise ValueError("'name' names a folder: not empty, without '/'")
        if self.epochs < 1:
            raise ValueError("'epochs' is at least 1")
        if self.batch_per_rank < 1:
            raise ValueError("'batch_per_rank' is at least 1")
        if not 0 <= self.seed < 2**63:
            raise ValueError("'seed' is from 0 to 2^63 - 1")


def bundled() -> dict[str, str]:
    """The named settings that come with the runtime: their TOML text by name."""
    folder = resources.files("hpcenv.runtime.train") / "configs"
    files = [file for file in folder.iterdir() if file.name.endswith(".toml")]
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}


def load_settings(reference: str, changes: Sequence[str] = ()) -> Settings:
    """Read settings from a file, or from those that come with the runtime, by name.

    Parameters
    ----------
    reference : str
        A path (it ends in ``.toml`` or holds a ``/``) or a name.
    changes : sequence of str
        ``key=value`` with dotted keys; the value is TOML, or else text.

    Raises
    ------
    BadInput, BadFile
        With every problem found, each with its line where it has one.
    """
    if reference.endswith(".toml") or "/" in reference:
        file = Path(reference)
        if not changes:
            return record.load_toml(Settings, file)
        try:
            text = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read it: {error}", where=reference) from None
    else:
        known = bundled()
        if reference not in known:
            near = difflib.get_close_matches(reference, list(known), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
            raise BadInput(
                f"there are no settings called {reference!r}; {hint}",
                remedy="or give a file: hpcenv-train run FILE.toml",
            )
        text = known[reference]
    if not changes:
        return record.parse_toml(Settings, text, reference)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadFile(reference, [Problem("", f"not TOML: {error}")]) from None
    for change in changes:
        _apply(data, change)
    return record.parse_json(Settings, json.dumps(data), f"{reference} with --set")


def _apply(data: dict[str, Any], change: str) -> None:
    key, sign, text = change.partition("=")
    parts = key.strip().split(".")
    if not sign or not all(parts):
        raise BadInput(f"--set takes key=value, not {change!r}", remedy="--set epochs=3")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for part in parts[:-1]:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise BadInput(f"--set {change}: {part!r} is not a table")
    data[parts[-1]] = value


_MAY_CHANGE = ("epochs", "every", "data.folder", "data.stage", "collective")


def same_run(old: Settings, new: Settings) -> list[str]:
    """Name the settings in which a run that goes on must not differ, and does."""
    return _differences(record.encode(old), record.encode(new), "")


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str) -> list[str]:
    found = []
    for key in sorted(old.keys() | new.keys()):
        path = prefix + key
        one, other = old.get(key), new.get(key)
        if path in _MAY_CHANGE or one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += _differences(one, other, path + ".")
        else:
            found.append(f"{path}: {one!r} then, {other!r} now")
    return found
