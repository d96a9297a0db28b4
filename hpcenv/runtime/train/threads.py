"""How many threads a rank may use: its share of the processors it may run on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from hpcenv.runtime.ranks import Ranks


def threads_per_rank(own: frozenset[int], on_node: Sequence[frozenset[int]]) -> int:
    """Return the threads of a rank, at least 1.

    A processor that k ranks of the node may run on counts 1/k for each. So a rank that its
    launcher bound to 4 cores gets 4 threads, and 2 unbound ranks on 16 cores get 8 each.

    Parameters
    ----------
    own : frozenset of int
        The processors this rank may run on.
    on_node : sequence of frozenset of int
        Those of every rank on this node, this one too.
    """
    users = Counter(processor for processors in on_node for processor in processors)
    return max(1, int(sum(1 / users[processor] for processor in own) + 1e-9))


def threads_here(ranks: Ranks) -> int:
    """Return the threads of this rank; every rank calls it."""
    own = frozenset(os.sched_getaffinity(0))
    everywhere = ranks.gather(own)
    here = ranks.nodes[ranks.rank]
    on_node = [each for each, node in zip(everywhere, ranks.nodes, strict=True) if node == here]
    return threads_per_rank(own, on_node)
