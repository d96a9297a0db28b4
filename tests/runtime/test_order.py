"""The order of samples: every one once an epoch, over all ranks, from any point on."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcenv.runtime.train import order


def test_splitmix64_gives_the_published_sequence() -> None:
    # The values that implementations are compared by (Rosetta Code, "Pseudo-random numbers/
    # Splitmix64"), for the seed 1234567.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert order.splitmix64(1234567, 5).tolist() == published


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.integers(1, 500))
def test_an_epoch_holds_every_sample_once(seed: int, epoch: int, samples: int) -> None:
    assert sorted(order.permutation(seed, epoch, samples)) == list(range(samples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [order.permutation(seed, epoch, 1000) for seed in (1, 2) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # Two random orders of 1000 agree in one place on average.
            assert (one == other).sum() < 10


@given(st.integers(0, 2**63 - 1), st.integers(1, 60), st.integers(1, 9), st.integers(1, 8))
def test_ranks_share_each_epoch_exactly(seed: int, samples: int, ranks: int, width: int) -> None:
    seen = 0
    counts = np.zeros(samples, int)
    while seen < 2 * samples:
        batch = order.batch(seed, seen, samples, ranks * width)
        before = seen
        for rank in range(ranks):
            places, real = order.share(batch.samples, rank, ranks, width)
            assert len(places) == len(real) == width
            np.add.at(counts, places, real)
        seen = batch.seen
        assert seen == before + len(batch.samples) <= (batch.epoch + 1) * samples
        if seen == samples:
            assert counts.tolist() == [1] * samples
    assert counts.tolist() == [2] * samples


@given(st.integers(0, 2**32), st.integers(0, 200), st.integers(1, 50), st.integers(1, 20))
def test_what_follows_depends_on_what_was_seen_alone(
    seed: int, steps: int, samples: int, width: int
) -> None:
    seen = 0
    for _ in range(steps % 7):
        seen = order.batch(seed, seen, samples, width).seen
    order.permutation.cache_clear()
    again = order.batch(seed, seen, samples, width)
    epoch, position = divmod(seen, samples)
    whole = order.permutation(seed, epoch, samples)
    assert again.samples.tolist() == whole[position : position + width].tolist()
