"""The two optimizers, as rules from old values to new ones.

A rule works on anything with arithmetic: TensorFlow's tensors in training, NumPy's arrays in
tests. `slots` arrays of a weight's shape, zero at first, go with each weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum (Polyak's heavy ball).

    ``v ← momentum · v + g``, then ``w ← w - rate · v``. The rate stands outside the velocity, so
    that a warm-up needs no momentum correction (Goyal et al., arXiv:1706.02677, section 3).
    """

    kind: Literal["sgd"] = "sgd"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError("'momentum' is at least 0 and below 1")

    @property
    def slots(self) -> int:
        """Arrays kept beside each weight."""
        return 1

    def update(
        self, weight: Any, gradient: Any, slots: Sequence[Any], rate: Any, number: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the new weight and the new slots.

        Parameters
        ----------
        weight, gradient : array
            Of one shape.
        slots : sequence of array
            As this rule left them.
        rate : float
            The learning rate of this step.
        number : float
            Which step this is, from 1.
        """
        velocity = self.momentum * slots[0] + gradient
        return weight - rate * velocity, (velocity,)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), with the paper's epsilon."""

    kind: Literal["adam"] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise ValueError("'beta1' and 'beta2' are at least 0 and below 1")
        if self.epsilon <= 0:
            raise ValueError("'epsilon' is above 0")

    @property
    def slots(self) -> int:
        """Arrays kept beside each weight."""
        return 2

    def update(
        self, weight: Any, gradient: Any, slots: Sequence[Any], rate: Any, number: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the new weight and the new slots; see `Sgd.update`."""
        mean = self.beta1 * slots[0] + (1 - self.beta1) * gradient
        square = self.beta2 * slots[1] + (1 - self.beta2) * gradient * gradient
        unbiased_mean = mean / (1 - self.beta1**number)
        unbiased_square = square / (1 - self.beta2**number)
        step = rate * unbiased_mean / (unbiased_square**0.5 + self.epsilon)
        return weight - step, (mean, square)
