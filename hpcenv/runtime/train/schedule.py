"""The learning rate: from the global batch, and from how far the run is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LearningRate:
    """Linear scaling with gradual warm-up (Goyal et al., arXiv:1706.02677, section 2).

    Attributes
    ----------
    base : float
        For a global batch of `base_batch` samples; the peak is ``base · batch / base_batch``.
    base_batch : int
        Samples.
    warmup_epochs : float
        Over which the rate goes in a straight line from `base` to the peak.
    decay : {"cosine", "none"}
        After the warm-up: half a cosine down to 0 at the end (Loshchilov and Hutter,
        arXiv:1608.03983), or the peak kept.
    """

    base: float = 0.02
    base_batch: int = 32
    warmup_epochs: float = 1.0
    decay: Literal["cosine", "none"] = "cosine"

    def __post_init__(self) -> None:
        if not self.base > 0 or math.isinf(self.base):
            raise ValueError("'base' is above 0")
        if self.base_batch < 1:
            raise ValueError("'base_batch' is at least 1")
        if not self.warmup_epochs >= 0 or math.isinf(self.warmup_epochs):
            raise ValueError("'warmup_epochs' is at least 0")

    def at(self, epoch: float, epochs: int, global_batch: int) -> float:
        """Return the rate at `epoch` (fractions count) of `epochs`.

        Parameters
        ----------
        epoch : float
            From 0; the samples seen so far over those of an epoch.
        epochs : int
            How many the run has.
        global_batch : int
            Samples a step, over all ranks.
        """
        peak = self.base * global_batch / self.base_batch
        if epoch < self.warmup_epochs:
            return self.base + (peak - self.base) * epoch / self.warmup_epochs
        if self.decay == "none" or epochs <= self.warmup_epochs:
            return peak
        share = min(1.0, (epoch - self.warmup_epochs) / (epochs - self.warmup_epochs))
        return peak * 0.5 * (1 + math.cos(math.pi * share))
