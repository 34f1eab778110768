"""The highest points at which a density was evaluated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import damc
from damc.sampling.watch import Watched

D = torch.float64


def test_the_highest_points_are_remembered() -> None:
    watched = Watched(lambda z: -z.square().sum(1))
    g = torch.Generator().manual_seed(0)
    every = []
    for k in range(600):
        z = torch.randn(10, 2, dtype=D, generator=g)
        every.append(z)
        if k % 2:
            assert torch.equal(watched.value_and_grad(z)[1], -2 * z)
        else:
            watched(z)
    watched(torch.empty(0, 2, dtype=D))
    best = torch.stack([z[(-z.square().sum(1)).argmax()] for z in every])
    order = best.square().sum(1).argsort()
    assert torch.equal(watched.highest(), best[order[:32]])


def test_points_that_are_not_finite_do_not_count() -> None:
    watched = Watched(lambda z: torch.where(z[:, 0] > 0, math.nan, z[:, 0]))
    watched(torch.tensor([[1.0], [-3.0], [-2.0]]))
    assert float(watched.highest()) == -2


def test_a_needle_inside_a_mode_is_not_overlooked() -> None:
    """Half of the mass lies within 0.01 of one point, where no particle ever comes to rest."""

    def log_prob(z: Tensor) -> Tensor:
        wide = -z.square().sum(1) / 2
        needle = -(z - 0.5).square().sum(1) / (2 * 0.005**2) - 2 * math.log(0.005)
        return torch.logaddexp(wide, needle)

    draws = damc.sample(log_prob, 2, n=1000)
    near = ((draws.samples - 0.5).norm(dim=1) < 0.02).double()
    share = float((near * torch.softmax(draws.log_weights, 0)).sum())
    assert abs(share - 0.5) < 0.1 or not draws.trusted
