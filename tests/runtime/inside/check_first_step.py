"""The first step of several ranks is the float64 mean-gradient step, computed in NumPy.

Usage: check_first_step.py COLLECTIVE SAMPLES. Ranks start from seeds of their own and see disjoint
samples; a batch that the ranks do not divide is among those tried.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np

from hpcenv.runtime.ranks import connect as join
from hpcenv.runtime.train import order
from hpcenv.runtime.train.collective import connect
from hpcenv.runtime.train.digest import digest, require_equal
from hpcenv.runtime.train.optimizers import Sgd

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
RATE = 0.5
WIDTH = 8


def mean_gradient(weights, images, labels):
    """Of softmax cross-entropy over a network of one hidden layer, by hand, in float64."""
    w1, b1, w2, b2 = (each.astype(np.float64) for each in weights)
    x = images.reshape(len(images), -1).astype(np.float64) / 255.0
    before = x @ w1 + b1
    hidden = np.maximum(before, 0)
    logits = hidden @ w2 + b2
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d_logits = (p - np.eye(10)[labels]) / len(x)
    d_hidden = (d_logits @ w2.T) * (before > 0)
    return [x.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_logits, d_logits.sum(0)]


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    ranks = join(os.environ)
    collective = connect(name, ranks)

    import keras

    from hpcenv.runtime.models import MODELS
    from hpcenv.runtime.train.learner import Learner, Share

    keras.utils.set_random_seed(11 + ranks.rank)
    learner = Learner(MODELS["mlp"](), Sgd(momentum=0.9), collective)
    distinct = len(set(ranks.gather(digest(learner.arrays()))))
    assert distinct == ranks.size, f"{distinct} different starts on {ranks.size} ranks"
    learner.restore(collective.broadcast(learner.arrays()))
    require_equal(learner.arrays(), ranks, "after the broadcast")

    random = np.random.default_rng(3)  # the same on every rank: the data set
    images = random.integers(0, 256, (100, 28, 28, 1), dtype=np.uint8)
    labels = random.integers(0, 10, 100).astype(np.int32)
    batch = order.batch(5, 0, 100, count)
    mine, real = order.share(batch.samples, ranks.rank, ranks.size, WIDTH)
    shares = ranks.gather(set(mine[real == 1].tolist()))
    assert sum(map(len, shares)) == count == len(set().union(*shares)), "shares are not disjoint"

    before = learner.arrays()[:4]
    share = Share(images[mine], labels[mine], real.astype(np.float32), ranks.size / count)
    outcome = learner.step(share, RATE, 1, False)
    after = learner.arrays()[:4]
    require_equal(learner.arrays(), ranks, "after the first step")

    expected = mean_gradient(before, images[batch.samples], labels[batch.samples])
    own = mean_gradient(before, images[mine[real == 1]], labels[mine[real == 1]])
    largest = max(np.abs(g).max() for g in expected)
    taken = [(b.astype(np.float64) - a) / RATE for b, a in zip(before, after, strict=True)]
    error = max(np.abs(t - e).max() for t, e in zip(taken, expected, strict=True)) / largest
    alone = max(np.abs(o - e).max() for o, e in zip(own, expected, strict=True)) / largest
    # The weights' own rounding, half a unit in the last place of about 0.1, over the rate.
    assert error < 2e-6, f"rank {ranks.rank}: off by {error}"
    if ranks.size > 1:
        assert alone > 0.01, f"rank {ranks.rank}: this test could not tell (off by {alone} alone)"
    assert not outcome.stop
    # The wish of one rank stops all.
    stops = learner.step(share, RATE, 2, ranks.rank == ranks.size - 1).stop
    assert all(ranks.gather(stops))
    if ranks.rank == 0:
        print(json.dumps({"error": error, "alone": alone, "size": ranks.size}))


main()
