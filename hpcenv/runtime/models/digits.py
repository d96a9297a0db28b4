"""Two small networks for handwritten digits."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

CLASSES = 10
SHAPE = (28, 28, 1)


def cnn() -> Any:
    """Two convolutions and two dense layers: 56,714 weights."""
    return _classifier(
        layers.Conv2D(16, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
    )


def mlp() -> Any:
    """One hidden layer of 32: 25,450 weights; small enough to differentiate by hand."""
    return _classifier(layers.Flatten(), layers.Dense(32, activation="relu"))


def _classifier(*body: Any) -> Any:
    # Logits are float32 whatever the layers compute in: so is the loss made of them.
    logits = layers.Dense(CLASSES, dtype="float32", name="logits")
    return keras.Sequential([keras.Input(SHAPE), *body, logits])
