"""Which samples a step takes: a pure function of the seed and of how many were seen.

So the whole state of the order is one integer, and a run that goes on sees what it would have
seen. The hash is SplitMix64's (Steele, Lea and Flood, OOPSLA 2014), written out, because NumPy
promises no stream of its generators from one version to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_GAMMA = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def splitmix64(state: int, count: int) -> Words:
    """Return the first `count` outputs of SplitMix64 from a 64-bit state."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64)
        z = np.uint64(state & _WORD) + steps * np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Words = z ^ (z >> np.uint64(31))
    return mixed


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, samples: int) -> Integers:
    """Return the order of an epoch: each of ``0 … samples - 1`` once."""
    # The outputs of one state are a bijection of the counter: no two keys are equal.
    state = int(splitmix64(int(splitmix64(seed, 1)[0]) ^ epoch, 1)[0])
    order = np.argsort(splitmix64(state, samples), kind="stable").astype(np.int64)
    order.flags.writeable = False  # it is kept for the next call
    return order


@dataclass(frozen=True)
class Batch:
    """The samples of one step.

    Attributes
    ----------
    epoch : int
        From 0.
    samples : array of int
        Over all ranks; short at the end of an epoch.
    seen : int
        How many samples the run has seen after this step.
    """

    epoch: int
    samples: Integers
    seen: int


def batch(seed: int, seen: int, samples: int, global_batch: int) -> Batch:
    """Return the batch that follows `seen` samples; none crosses the end of an epoch."""
    epoch, position = divmod(seen, samples)
    chosen = permutation(seed, epoch, samples)[position : position + global_batch]
    return Batch(epoch, chosen, seen + len(chosen))


def share(samples: Integers, rank: int, size: int, width: int) -> tuple[Integers, Integers]:
    """Return a rank's part of a batch, filled up to `width`, and 1 for real samples, 0 for fill.

    The parts of all ranks are disjoint and together the batch. A part may be nothing but fill.
    """
    part = samples[rank::size]
    filled = np.zeros(width, np.int64)
    real = np.zeros(width, np.int64)
    filled[: len(part)] = part
    real[: len(part)] = 1
    return filled, real
