"""Log-densities that raise, overflow or round: right draws, or none that are trusted."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Cauchy, Normal

from damc import sample
from damc.density import value_and_grad
from damc.sampling.guard import guarded

D = torch.float64


def picky(z: Tensor) -> Tensor:
    """Raises for the whole batch if one point is too far out, as distributions of torch do."""
    if bool((z[:, 0].abs() > 3).any()):
        raise ValueError("expected a point nearer to 0")
    return -z.square().sum(1) / 2


def test_only_points_that_raise_or_are_not_finite_become_nan(generator: torch.Generator) -> None:
    z = 3 * torch.randn(500, 2, dtype=D, generator=generator)
    z[::50, 1] = torch.inf
    target = guarded(picky)
    for _ in range(2):  # the second time it knows where points were fine
        value, grad = value_and_grad(target, z)
        fine = (z[:, 0].abs() <= 3) & z.isfinite().all(1)
        assert torch.equal(value.isnan(), ~fine)
        torch.testing.assert_close(value[fine], -z[fine].square().sum(1) / 2)
        torch.testing.assert_close(grad[fine], -z[fine])
    assert target.refused == 2 * int((~fine & z.isfinite().all(1)).sum())
    assert "raised ValueError at" in target.notes[0]


def test_no_point_that_is_left_is_no_error() -> None:
    value, _ = value_and_grad(guarded(picky), torch.full((3, 2), torch.nan, dtype=D))
    assert bool(value.isnan().all())


def test_a_gradient_of_its_own_is_guarded_too() -> None:
    class Own:
        def log_prob(self, z: Tensor) -> Tensor:
            return picky(z)

        def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
            return picky(z), torch.full_like(z, 7.0)

    from damc.density import as_log_prob

    z = torch.tensor([[0.0, 1.0], [9.0, 0.0]], dtype=D)
    value, grad = value_and_grad(guarded(as_log_prob(Own())), z)
    assert value[0] == -0.5 and bool(value[1].isnan())
    assert torch.equal(grad[0], torch.full((2,), 7.0, dtype=D))


def test_a_factor_that_does_not_exist_makes_a_point_impossible() -> None:
    def log_prob(z: Tensor) -> Tensor:
        rows = torch.stack([torch.ones_like(z[:, 0]), z[:, 0], z[:, 0], torch.ones_like(z[:, 0])])
        factor = torch.linalg.cholesky(rows.T.view(-1, 2, 2))
        return factor.diagonal(dim1=1, dim2=2).log().sum(1)

    value = guarded(log_prob)(torch.tensor([[0.5], [2.0], [0.0]], dtype=D))
    assert value.isfinite().tolist() == [True, False, True]


def test_a_funnel_of_distributions_that_validate_their_scale() -> None:
    def log_prob(z: Tensor) -> Tensor:
        neck = Normal(0.0, 3.0).log_prob(z[:, 0])
        return neck + Normal(0.0, (z[:, :1] / 2).exp()).log_prob(z[:, 1:]).sum(1)

    draws = sample(log_prob, 3, n=1000)
    assert draws.trusted and "raised ValueError" in draws.report
    assert abs(draws.log_evidence) < max(4 * draws.log_evidence_error, 0.05)
    assert abs(float(draws.samples[:, 0].std()) - 3) < 4 * 3 / math.sqrt(2 * draws.ess)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_draws_of_a_cauchy_are_worth_many(seed: int) -> None:
    """A tilt as strong as few far particles suggested left no integral, and an ess of 4."""
    draws = sample(lambda z: Cauchy(0.0, 1.0).log_prob(z).sum(1), 1, n=1000, seed=seed)
    assert draws.trusted and draws.ess > 500
    weights = torch.softmax(draws.log_weights, 0)
    for level, edge in ((0.5, 1.0), (0.9, math.tan(0.45 * math.pi))):
        share = float(weights[draws.samples[:, 0].abs() < edge].sum())
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / draws.ess)


def test_the_error_of_the_evidence_tells_tails_that_particles_miss() -> None:
    heavy = torch.distributions.StudentT(0.5)
    draws = sample(lambda z: heavy.log_prob(z).sum(1), 1, n=1000)
    assert draws.trusted
    assert abs(draws.log_evidence) < 4 * draws.log_evidence_error < 0.3


def test_plus_infinity_on_a_region_is_not_trusted() -> None:
    draws = sample(lambda z: torch.where(z[:, 0] > 1, torch.inf, -z.square().sum(1)), 2, n=200)
    assert not draws.trusted and "log_prob is +inf at" in draws.report


def test_a_density_that_is_infinite_on_its_border_alone_is_trusted() -> None:
    """Far points are rounded to 0, where Gamma(1/2) has a pole that has an integral."""
    half = torch.distributions.Gamma(0.5, 1.0, validate_args=False)
    positive = torch.distributions.constraints.positive
    draws = sample(lambda x: half.log_prob(x).sum(1), 3, n=1000, support=positive)
    assert draws.trusted, draws.report
    assert abs(draws.log_evidence) < max(4 * draws.log_evidence_error, 0.02)


def test_values_that_are_rounded_are_not_trusted() -> None:
    draws = sample(lambda z: 1e10 - z.float().square().sum(1) / 2, 2, n=200)
    assert not draws.trusted and "rounded to multiples of" in draws.report
    fine = sample(lambda z: 1e5 - z.float().square().sum(1) / 2, 2, n=200)
    assert fine.trusted


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_uniform_density_on_a_disc_is_trusted(seed: int) -> None:
    """Lucky draws of Gaussians far outside once bounded its mass from below, by too much."""

    def log_prob(z: Tensor) -> Tensor:
        return torch.where(z.norm(dim=1) < 1, 0 * z.sum(1), -torch.inf)

    draws = sample(log_prob, 2, n=1000, seed=seed)
    assert draws.trusted, draws.report
    assert abs(draws.log_evidence - math.log(math.pi)) < max(4 * draws.log_evidence_error, 0.02)
