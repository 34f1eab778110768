"""Straightened coordinates: an exact change of variables, found from samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from damc.kernels.base import State
from damc.kernels.funnels import LocationScale

D = torch.float64


def funnel_points(n: int, generator: torch.Generator) -> Tensor:
    """x_0 ~ N(2, 3^2), x_i ~ N(0.1 x_0, exp(x_0)) and one independent variable last."""
    w = torch.randn(n, 5, dtype=D, generator=generator)
    x = 2 + 3 * w[:, :1]
    return torch.cat([x, 0.1 * x + torch.exp(x / 2) * w[:, 1:4], w[:, 4:] + 1], 1)


def log_prob(z: Tensor) -> Tensor:
    return -(z.square().sum(1) / 8 + torch.cos(z).sum(1) + z[:, 0] * z[:, 1].tanh())


def test_the_jacobian_and_the_gradients_are_those_of_autograd(generator: torch.Generator) -> None:
    found = LocationScale.fit(funnel_points(4000, generator))
    assert found is not None and found.drivers.tolist() == [True, False, False, False, False]
    v = torch.randn(6, 5, dtype=D, generator=generator)
    torch.testing.assert_close(found.inverse(found(v)), v)
    jacobian = torch.vmap(torch.func.jacrev(lambda v: found(v[None])[0]))(v)
    torch.testing.assert_close(found.log_det(v), torch.linalg.slogdet(jacobian)[1])
    value, grad = found.target(log_prob).value_and_grad(v)
    by_autograd = torch.func.grad(lambda v: found.target(log_prob)(v).sum())(v)
    torch.testing.assert_close(grad, by_autograd)
    z = found(v)
    there = State(z, log_prob(z), torch.func.grad(lambda z: log_prob(z).sum())(z))
    state = found.to_v(there)
    assert state.log_prob is not None and state.grad is not None
    torch.testing.assert_close(state.log_prob, value)
    torch.testing.assert_close(state.grad, grad)
    for mine, again in zip(found.to_z(state)[:3], there[:3], strict=True):
        torch.testing.assert_close(mine, again)


def test_a_funnel_becomes_round(generator: torch.Generator) -> None:
    z = funnel_points(20_000, generator)
    found = LocationScale.fit(z)
    assert found is not None
    assert abs(float(found.tilt[1, 0]) - 0.5) < 0.02
    v = found.inverse(z)
    small, large = v[z[:, 0] < 0][:, 1:4].std(0), v[z[:, 0] > 4][:, 1:4].std(0)
    assert (small / large - 1).abs().max() < 0.2
    assert math.log(float(z[z[:, 0] > 4][:, 1].std() / z[z[:, 0] < 0][:, 1].std())) > 1.5


def test_a_banana_becomes_round(generator: torch.Generator) -> None:
    """x_1 = x_0^2 + 0.1 w, Rosenbrock's valley."""
    w = torch.randn(8000, 3, dtype=D, generator=generator)
    x = 1 + w[:, :1]
    z = torch.cat([x, x.square() + 0.1 * w[:, 1:2], 5 * w[:, 2:]], 1)
    found = LocationScale.fit(z)
    assert found is not None and found.drivers.tolist() == [True, False, False]
    assert abs(float(found.curve[1, 0]) - 1) < 0.02 and abs(float(found.slope[1, 0])) < 0.05
    v = found.inverse(z)
    correlation = torch.corrcoef(torch.cat([v[:, :2], v[:, :1].square()], 1).T)
    assert correlation[1, [0, 2]].abs().max() < 0.05
    _, grad = found.target(log_prob).value_and_grad(v[:5])
    torch.testing.assert_close(
        grad, torch.func.grad(lambda v: found.target(log_prob)(v).sum())(v[:5])
    )


def test_a_gaussian_is_left_alone(generator: torch.Generator) -> None:
    w = torch.randn(4000, 6, dtype=D, generator=generator)
    assert LocationScale.fit(w @ torch.randn(6, 6, dtype=D, generator=generator)) is None
    # Nor is a Student t with 3 degrees of freedom, whose far points look like bends.
    radius = torch.randn(4000, 3, dtype=D, generator=generator).square().mean(1, keepdim=True)
    assert LocationScale.fit(w / radius.sqrt()) is None
