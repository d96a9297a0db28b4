"""Our two optimizers and Keras's own, over 100 steps of one problem."""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import keras
import numpy as np
import tensorflow as tf

from hpcenv.runtime.train.optimizers import Adam, Sgd


def main() -> None:
    random = np.random.default_rng(1)
    start = random.normal(size=(7, 5)).astype(np.float32)
    gradients = random.normal(size=(100, 7, 5)).astype(np.float32)
    for ours, theirs in (
        (Sgd(momentum=0.9), keras.optimizers.SGD(0.01, momentum=0.9)),
        # Keras adds its epsilon before the bias of the second moment is taken out; with an
        # epsilon this small the two forms agree.
        (Adam(epsilon=1e-12), keras.optimizers.Adam(0.01, epsilon=1e-12)),
    ):
        peer = keras.Variable(start)
        weight = tf.Variable(start)
        slots = [tf.zeros_like(weight) for _ in range(ours.slots)]
        for number, gradient in enumerate(gradients, 1):
            theirs.apply([tf.constant(gradient)], [peer])
            new, slots = ours.update(
                weight, tf.constant(gradient), slots, tf.constant(0.01), tf.constant(float(number))
            )
            weight.assign(new)
        apart = np.abs(peer.numpy() - weight.numpy()).max()
        moved = np.abs(weight.numpy() - start).max()
        assert moved > 0.05
        assert apart < 1e-5 * max(1.0, moved), f"{ours}: {apart} apart after moving {moved}"
        print(type(ours).__name__, apart, moved)


main()
