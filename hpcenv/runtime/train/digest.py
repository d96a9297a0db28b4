"""Digests of weights, and whether all ranks hold the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcenv.runtime.ranks import Agreed, Ranks, who

Array = npt.NDArray[Any]


def digest(arrays: Sequence[Array]) -> str:
    """Return the SHA-256 of arrays: their types, shapes and bytes, in order."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.dtype.str}{array.shape}".encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def require_equal(arrays: Sequence[Array], ranks: Ranks, when: str) -> str:
    """Return the digest of the arrays that all ranks hold alike.

    Raises
    ------
    Agreed
        On every rank, naming those whose arrays differ from what most hold.
    """
    found = ranks.gather(digest(arrays))
    if len(set(found)) == 1:
        return found[0]
    most = Counter(found).most_common()
    # Where no digest leads, rank 0's is the one to compare with: checkpoints are its.
    common = most[0][0] if most[0][1] > most[1][1] else found[0]
    apart = [rank for rank, other in enumerate(found) if other != common]
    raise Agreed(
        f"{when}, the weights of {who(apart, ranks.nodes)} differ from those of the "
        f"other {ranks.size - len(apart)} rank(s): gradients were not exchanged, or not alike\n"
        "  hpcenv validate-horovod IMAGE tests the exchange; the last checkpoint is from before",
        1,
    )
