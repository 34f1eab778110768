"""References: normalized, with the gradients of autograd, wider than the points they fit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.kernels.base import State
from damc.kernels.funnels import LocationScale
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover
from damc.kernels.reference import Reference

D = torch.float64


def funnel_points(n: int, generator: torch.Generator) -> Tensor:
    w = torch.randn(n, 4, dtype=D, generator=generator)
    return torch.cat([1.5 * w[:, :1], torch.exp(0.75 * w[:, :1]) * w[:, 1:]], 1)


def make(kind: str, generator: torch.Generator) -> Reference:
    if kind == "funnel":
        found = Reference.fit(funnel_points(4000, generator), 1.5)
        assert found is not None and found.funnel is not None
        return found
    factor = torch.tensor([[2.0, 0.0], [-1.0, 0.3]], dtype=D)
    degrees = None if kind == "gaussian" else 5
    return Reference(torch.tensor([1.0, -4.0], dtype=D), factor, None, degrees)


@pytest.mark.parametrize("kind", ["student", "gaussian", "funnel"])
def test_draws_and_density_belong_together(kind: str, generator: torch.Generator) -> None:
    """E_r[g / r] = 1 for any density g: here a Gaussian inside r, in the same coordinates."""
    r = make(kind, generator)
    g = Reference(r.mean, 0.7 * r.factor, r.funnel, None)
    z = r.sample(40_000, generator)
    ratio = (g.log_prob(z) - r.log_prob(z)).exp()
    assert abs(float((ratio.mean() - 1) / (ratio.std() / math.sqrt(len(z))))) < 4
    twice = Reference(r.mean, 2 * r.factor, r.funnel, r.degrees).sample(40_000, generator)
    wrong = (g.log_prob(twice) - r.log_prob(twice)).exp()
    assert abs(float((wrong.mean() - 1) / (wrong.std() / math.sqrt(len(z))))) > 10


@pytest.mark.parametrize("kind", ["student", "gaussian", "funnel"])
def test_the_gradient_is_that_of_autograd(kind: str, generator: torch.Generator) -> None:
    r = make(kind, generator)
    z = r.sample(20, generator)
    value, grad = r.value_and_grad(z)
    torch.testing.assert_close(value, r.log_prob(z))
    torch.testing.assert_close(grad, torch.func.grad(lambda z: r.log_prob(z).sum())(z))


def test_student_is_the_known_density() -> None:
    r = Reference(torch.zeros(1, dtype=D), torch.ones(1, 1, dtype=D))
    z = torch.linspace(-4, 4, 9, dtype=D)
    law = torch.distributions.StudentT(torch.tensor(5.0, dtype=D))
    torch.testing.assert_close(r.log_prob(z[:, None]), law.log_prob(z))


def test_a_fit_is_wider_than_its_points_and_degenerate_points_have_none(
    generator: torch.Generator,
) -> None:
    z = 10 + 3 * torch.randn(5000, 2, dtype=D, generator=generator)
    r = Reference.fit(z, 1.5)
    assert r is not None and r.funnel is None
    assert (r.factor.diagonal() / 4.5 - 1).abs().max() < 0.1
    assert Reference.fit(torch.ones(100, 2, dtype=D)) is None


class WithoutJacobian(LocationScale):
    """Straightened coordinates whose volume nobody counted."""

    def log_det(self, v: Tensor) -> Tensor:
        return 0 * v[:, 0]


def test_moves_in_straightened_coordinates_keep_a_funnel(generator: torch.Generator) -> None:
    def log_prob(z: Tensor) -> Tensor:
        scale = z[:, :1] / 2
        rest = -(z[:, 1:] * torch.exp(-scale)).square().sum(1) / 2 - 3 * scale[:, 0]
        return -z[:, 0].square() / (2 * 1.5**2) + rest

    exact = funnel_points(20_000, generator)
    fitted = LocationScale.fit(exact)
    assert fitted is not None

    def deviation(funnel: LocationScale) -> float:
        """Of the scale variable's mean after moves from exact points, in standard errors."""
        mover = Mover(HMC(1.0, leapfrogs=4, target_acceptance=None), straight=funnel)
        state = State(exact, *value_and_grad(log_prob, exact))
        state, _ = mover.move(state, log_prob, (10, 10), Budget(), generator, adapt=False)
        x = state.z[:, 0]
        return abs(float(x.mean() / (x.std() / math.sqrt(len(x)))))

    assert deviation(fitted) < 4
    wrong = WithoutJacobian(
        fitted.drivers, fitted.shift, fitted.slope, fitted.curve, fitted.log_scale, fitted.tilt
    )
    assert deviation(wrong) > 10
