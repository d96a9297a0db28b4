"""The learning rate against the formulas of its sources."""

from __future__ import annotations

import math

import pytest

from hpcenv.runtime.train.schedule import LearningRate


def horovod_warmup(ranks: int, epoch: float, warmup: float) -> float:
    """The multiplier that Horovod documents for LearningRateWarmupCallback."""
    return 1 / ranks * (epoch * (ranks - 1) / warmup + 1)


@pytest.mark.parametrize("ranks", [1, 2, 8, 256])
@pytest.mark.parametrize("epoch", [0.0, 0.3, 2.5, 4.999])
def test_warm_up_follows_horovods_formula(ranks: int, epoch: float) -> None:
    rate = LearningRate(base=0.1, base_batch=32, warmup_epochs=5, decay="none")
    peak = 0.1 * ranks
    expected = peak * horovod_warmup(ranks, epoch, 5)
    assert rate.at(epoch, 90, 32 * ranks) == pytest.approx(expected, rel=1e-12)


def test_the_papers_example() -> None:
    # Goyal et al., section 2.2 and 5.1: 0.1 for 256 images, 3.2 for 8192, after 5 epochs.
    rate = LearningRate(base=0.1, base_batch=256, warmup_epochs=5, decay="none")
    assert rate.at(0, 90, 8192) == pytest.approx(0.1)
    assert rate.at(5, 90, 8192) == pytest.approx(3.2)
    assert rate.at(89, 90, 8192) == pytest.approx(3.2)


def test_cosine_goes_through_the_middle_to_zero() -> None:
    rate = LearningRate(base=0.1, base_batch=32, warmup_epochs=2, decay="cosine")
    assert rate.at(2, 12, 64) == pytest.approx(0.2)
    assert rate.at(7, 12, 64) == pytest.approx(0.1)
    assert rate.at(2 + 10 / 3, 12, 64) == pytest.approx(0.2 * 0.75)
    assert rate.at(12, 12, 64) == pytest.approx(0, abs=1e-15)


def test_no_warm_up_and_nothing_but_warm_up() -> None:
    assert LearningRate(base=1, base_batch=1, warmup_epochs=0, decay="none").at(0, 1, 4) == 4
    short = LearningRate(base=1, base_batch=1, warmup_epochs=3, decay="cosine")
    assert short.at(1.5, 2, 3) == pytest.approx(2)


@pytest.mark.parametrize(
    "wrong", [{"base": 0.0}, {"base": math.nan}, {"base_batch": 0}, {"warmup_epochs": -1.0}]
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearningRate(**wrong)  # type: ignore[arg-type]
