"""Smoothed weights against closed forms, and that they help where they should."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import BadInput
from damc.sampling.weights import smooth, weights


def uniform(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_tail_index_of_pareto_weights_is_found(k: float) -> None:
    """w = u^-k has P(w > x) = x^(-1/k)."""
    found = [smooth(-k * uniform(20_000, seed).log())[1] for seed in range(5)]
    assert abs(sum(found) / 5 - k) < 0.1


def test_smoothing_changes_the_largest_weights_only_and_keeps_their_order() -> None:
    log_w = -0.8 * uniform(4000).log()
    smoothed, _ = smooth(log_w)
    order = log_w.argsort()
    assert smoothed[order].diff().min() >= 0
    same = smoothed[order[:-190]] == log_w[order[:-190]]
    assert bool(same.all()) and not smoothed.equal(log_w)
    assert smoothed.max() <= log_w.max()


def test_smoothed_weights_are_nearer_to_the_evidence() -> None:
    """Weights u^-0.7 have mean 1 / 0.3 and no variance."""
    raw, mild = [], []
    for seed in range(200):
        log_w = -0.7 * uniform(1000, seed).log()
        exact = -math.log(0.3)
        raw.append(float(log_w.logsumexp(0)) - math.log(1000) - exact)
        mild.append(weights(log_w).log_evidence - exact)
    spread = [float(torch.tensor(x).square().mean().sqrt()) for x in (raw, mild)]
    assert spread[1] < spread[0]


def test_draws_of_the_target_itself_have_equal_weights() -> None:
    w = weights(torch.full((500,), 3.0, dtype=torch.float64))
    assert w.k_hat == -math.inf and abs(w.ess - 500) < 1e-6 and w.elbo == 3.0
    assert abs(w.log_evidence - 3) < 1e-9 and w.log_evidence_error < 1e-6 and math.isnan(w.eubo)


def test_gaussian_draws_for_a_narrower_gaussian() -> None:
    """q = N(0, 1) and p = N(0, 1/2^2): evidence, bounds and effective size in closed form."""
    z = torch.randn(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def ratio(z: Tensor) -> Tensor:
        return math.log(2) - 2 * z.square() + z.square() / 2

    w = weights(ratio(z), ratio(z / 2))
    assert abs(w.log_evidence) < 0.02 and w.k_hat < 0.5
    assert abs(w.elbo - (math.log(2) - 1.5)) < 0.05 and abs(w.eubo - (math.log(2) - 0.375)) < 0.02
    assert abs(w.ess / 20_000 - math.sqrt(7) / 4) < 0.02  # 1 / E[w^2]


def test_impossible_draws_and_wrong_shapes() -> None:
    assert smooth(torch.full((100,), -math.inf))[1] == math.inf
    with pytest.raises(BadInput, match="log_weights must have shape"):
        smooth(torch.zeros(3, 2))
