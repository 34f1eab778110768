"""Slopes of the mass in shells: known exponents, far out and at peaks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc.kernels.mover import Budget
from damc.sampling.shells import FALLS, pole, tail

D = torch.float64


def normal(n: int, d: int) -> Tensor:
    return torch.randn(n, d, dtype=D, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("d", "power"), [(1, 1.0), (2, 2.0), (2, 3.0), (5, 8.0)])
def test_the_slope_of_a_power_law_is_its_exponent(d: int, power: float) -> None:
    """(1 + |z|)^-a has the mass r^(d - a): improper up to a = d. On lines it is r^(1 - a)."""
    slope = tail(lambda z: -power * torch.log1p(z.norm(dim=1)), normal(2000, d), Budget())
    assert abs(slope - max(d - power, 1 - power)) < 0.02
    assert (slope > FALLS) == (power <= d)


def test_light_tails_fall_and_flat_coordinates_do_not() -> None:
    assert tail(lambda z: -z.square().sum(1), normal(2000, 3), Budget()) < -100

    def flat(z: Tensor) -> Tensor:
        return -z[:, :2].square().sum(1) + 0 * z[:, 2]

    assert tail(flat, normal(2000, 3), Budget()) > 0.9

    def ends(z: Tensor) -> Tensor:
        return torch.where(z.norm(dim=1) < 10, 0 * z.sum(1), torch.nan)

    assert tail(ends, normal(500, 2), Budget()) == -math.inf


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 3.0])
def test_poles(power: float) -> None:
    """|z - c|^-a exp(-|z - c|^2 / 2) in two dimensions has the mass r^(2 - a) close to c."""
    c = torch.tensor([0.7, -3.0], dtype=D)

    def log_prob(z: Tensor) -> Tensor:
        r = (z - c).norm(dim=1)
        return -power * r.log() - r.square() / 2

    z = normal(2000, 2) + c
    highest = z[log_prob(z).topk(2).indices]
    budget = Budget()
    slope = pole(log_prob, z, highest, budget, torch.Generator().manual_seed(1))
    assert abs(slope - (2 - power)) < 0.15
    assert 0 < budget.spent < 50_000
