"""Both optimizers over 100 steps in float32, against float64 done another way."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from hpcenv.runtime.train.optimizers import Adam, Sgd

STEPS = 100
Doubles = npt.NDArray[np.float64]


def run(rule: Sgd | Adam, start: Doubles, gradient, rate, dtype) -> Doubles:  # type: ignore[no-untyped-def]
    weight = start.astype(dtype)
    slots = tuple(np.zeros_like(weight) for _ in range(rule.slots))
    for number in range(1, STEPS + 1):
        g = gradient(weight.astype(np.float64), number).astype(dtype)
        weight, slots = rule.update(weight, g, slots, dtype(rate(number)), dtype(number))
        assert weight.dtype == dtype and all(slot.dtype == dtype for slot in slots)
    return weight.astype(np.float64)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_sgd_on_a_parabola_is_a_power_of_a_matrix(momentum: float) -> None:
    # For the gradient c·w, one step maps (w, v) linearly: so a hundred are the matrix's power.
    curvature = np.array([0.1, 1.0, 3.0])
    start = np.array([1.0, -2.0, 0.5])
    rate = 0.05
    expected = []
    for c, w in zip(curvature, start, strict=True):
        step = np.array([[1 - rate * c, -rate * momentum], [c, momentum]])
        expected.append((np.linalg.matrix_power(step, STEPS) @ [w, 0.0])[0])
    rule = Sgd(momentum=momentum)
    found = run(rule, start, lambda w, _: curvature * w, lambda _: rate, np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    found = run(rule, start, lambda w, _: curvature * w, lambda _: rate, np.float32)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def algorithm_1(start: float, gradients: list[float], rates: list[float], rule: Adam) -> float:
    """Kingma and Ba's Algorithm 1 for one number; the moments as the sums they stand for."""
    weight = start
    for t in range(1, len(gradients) + 1):
        seen = gradients[:t]
        m = (1 - rule.beta1) * math.fsum(rule.beta1 ** (t - i) * g for i, g in enumerate(seen, 1))
        v = (1 - rule.beta2) * math.fsum(
            rule.beta2 ** (t - i) * g * g for i, g in enumerate(seen, 1)
        )
        m_hat = m / (1 - rule.beta1**t)
        v_hat = v / (1 - rule.beta2**t)
        weight -= rates[t - 1] * m_hat / (math.sqrt(v_hat) + rule.epsilon)
    return weight


@pytest.mark.parametrize("rule", [Adam(), Adam(beta1=0.5, beta2=0.9, epsilon=1e-3)])
def test_adam_follows_algorithm_1(rule: Adam) -> None:
    random = np.random.default_rng(7)
    # From 1e-4 to 1e2: epsilon counts for some and not for others.
    scale = 10.0 ** np.arange(-4, 3)
    gradients = random.normal(size=(STEPS, 7)) * scale
    rates = [0.01 * (1 - t / 200) for t in range(STEPS)]
    start = np.linspace(-1, 1, 7)
    expected = [
        algorithm_1(start[i], [float(np.float32(g)) for g in gradients[:, i]], rates, rule)
        for i in range(7)
    ]

    def gradient(_: Doubles, number: int) -> Doubles:
        return gradients[number - 1].astype(np.float32)

    for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 2e-6)):
        found = run(rule, start, gradient, lambda number: rates[number - 1], dtype)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("rate", [0.1, 1e-3])
def test_adams_first_step_is_the_rate_whatever_the_gradient(rate: float) -> None:
    # The paper's section 2.1: the effective step is bounded by the rate.
    g = np.array([1e-3, -1e3, 5.0])
    weight, _ = Adam().update(np.zeros(3), g, (np.zeros(3), np.zeros(3)), rate, 1)
    np.testing.assert_allclose(weight, -rate * np.sign(g), rtol=2e-5)


@pytest.mark.parametrize(
    ("make", "wrong"),
    [(Sgd, {"momentum": 1.0}), (Sgd, {"momentum": -0.1}), (Adam, {"beta2": 1.0}),
     (Adam, {"epsilon": 0.0})],
)  # fmt: skip
def test_nonsense_is_refused(make: type, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make(**wrong)
