"""Most draws of an amortized posterior are made by jumps of a few that were moved."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from damc.kernels.base import State
from damc.kernels.mover import Budget, Possible
from damc.sampling.posterior import _Found, _spread

SHARES = (0.3, 0.7)


def log_prob(z: Tensor) -> Tensor:
    """Two modes 12 apart, of unequal mass and width."""
    left = math.log(SHARES[0]) - (z + 6).square().sum(1) / 2
    right = math.log(SHARES[1]) - ((z - 6) / 2).square().sum(1) / 2 - z.shape[1] * math.log(2)
    return torch.logaddexp(left, right)


def exact(n: int, d: int, generator: torch.Generator) -> Tensor:
    z = torch.randn(n, d, dtype=torch.float64, generator=generator)
    right = torch.rand(n, 1, generator=generator) < SHARES[1]
    return torch.where(right, 6 + 2 * z, z - 6)


def found(z: Tensor) -> _Found:
    value, grad = Possible(log_prob).value_and_grad(z)
    return _Found(State(z, value, grad))


@pytest.mark.parametrize("d", [1, 3])
def test_spread_draws_are_exact_and_nearly_independent(d: int) -> None:
    g, budget = torch.Generator().manual_seed(0), Budget()
    few = found(exact(1000, d, g))
    assert _spread(few, 20_000, Possible(log_prob), budget, g)
    z = few.state.z
    assert z.shape == (20_000, d) and few.log_weights.shape == (20_000,)
    assert 15_000 < few.ess <= 20_000
    assert len(z.unique(dim=0)) > 0.95 * len(z)
    value, grad = Possible(log_prob).value_and_grad(z)
    torch.testing.assert_close((few.state.log_prob, few.state.grad), (value, grad))
    # The few know the share of a mode to 1.4 %, and their copies more exactly, by jumps.
    right = z.mean(1) > -2  # 4 standard deviations from either
    assert float(right.double().mean()) == pytest.approx(SHARES[1], abs=0.012)
    for mode, mean, sd in ((right, 6.0, 2.0), (~right, -6.0, 1.0)):
        assert float((z[mode].mean(0) - mean).abs().max()) < 0.06 * sd
        assert float((z[mode].std(0) / sd - 1).abs().max()) < 0.04
    assert budget.spent < 15 * 20_000


def test_jumps_set_right_what_few_draws_have_wrong() -> None:
    g = torch.Generator().manual_seed(1)
    z = exact(4000, 2, g)
    few = found(torch.cat([z[z[:, 0] < 0][:500], z[z[:, 0] > 0][:500]]))  # half and half
    made = _spread(few, 10_000, Possible(log_prob), Budget(), g)
    # Either the shares are right, or the change is noticed and every draw is to be moved.
    right = float((few.state.z[:, 0] > 0).double().mean())
    assert right == pytest.approx(SHARES[1], abs=0.03) if made else len(few.state.z) == 1000


def test_too_few_accepted_jumps_make_nothing() -> None:
    """The few are far wider than the density: nearly every proposal is refused."""
    g = torch.Generator().manual_seed(0)
    few = found(30 * torch.randn(1000, 4, dtype=torch.float64, generator=g))
    assert not _spread(few, 10_000, Possible(log_prob), Budget(), g)
    assert len(few.state.z) == 1000 and "jumps" not in few.checks


def test_more_particles_must_agree_more_closely() -> None:
    """Rank shifts of 0.12: noise for 512 particles, of which many are copies, not for 4,096."""
    g = torch.Generator().manual_seed(0)

    def normal(n: int, mean: float) -> State:
        z = mean + torch.randn(n, 1, dtype=torch.float64, generator=g)
        return State(z, -z[:, 0].square() / 2, -z)

    draws = _Found(normal(10_000, 0.0))
    for particles, agrees in ((512, True), (4096, False)):
        state = normal(particles, 0.43)
        found = SimpleNamespace(state=state, finished=True, log_evidence_error=0.1)
        assert draws.agrees(found) is agrees
        assert draws.checks["annealed shift"] == pytest.approx(0.12, abs=0.03)
        found.finished = False
        assert not draws.agrees(found)
