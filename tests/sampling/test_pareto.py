"""Pareto smoothing: the tail's shape is found, and heavy weights are tamed."""

from __future__ import annotations

import math

import pytest
import torch

from damc.sampling.pareto import effective_size, pareto_smoothed


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_shape_of_a_pareto_tail_is_found(k: float) -> None:
    """Weights u^-k have a tail of shape k."""
    u = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    smoothed, found = pareto_smoothed(-k * u.log())
    assert found == pytest.approx(k, abs=0.12)
    assert float(smoothed.max()) <= 0.0 and smoothed.shape == u.shape


def test_smoothing_keeps_order_and_tames_the_largest() -> None:
    u = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    raw = -0.9 * u.log()
    smoothed, _ = pareto_smoothed(raw)
    assert torch.equal(raw.argsort(), smoothed.argsort())
    assert effective_size(smoothed) > effective_size(raw)


def test_equal_and_few_weights_are_left_alone() -> None:
    for log_weights in (torch.zeros(1000), torch.randn(20), torch.full((100,), -math.inf)):
        log_weights[0] = 0.0
        smoothed, k = pareto_smoothed(log_weights)
        assert k == -math.inf and torch.equal(smoothed, log_weights - log_weights.max())
    assert effective_size(torch.zeros(50)) == pytest.approx(50)
