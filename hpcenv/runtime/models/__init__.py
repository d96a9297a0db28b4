"""The networks that the settings can name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _digits_cnn() -> Any:
    from hpcenv.runtime.models import digits

    return digits.cnn()


def _mlp() -> Any:
    from hpcenv.runtime.models import digits

    return digits.mlp()


MODELS: dict[str, Callable[[], Any]] = {"digits-cnn": _digits_cnn, "mlp": _mlp}
"""Makers of Keras models, from images (28, 28, 1) in 0 … 1 to ten float32 logits."""
