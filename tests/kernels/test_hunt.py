"""Hunting: regions far from the points that are known are found, each of them once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from damc.kernels.hunt import hunt, scattered, together
from damc.kernels.mover import Budget

D = torch.float64
FAR = torch.tensor([30.0, -25.0], dtype=D)


def two(z: Tensor) -> Tensor:
    """N(0, 1) and a mode of width 0.2 with as much mass, 39 sds away; each has the mass 2 pi."""
    narrow = -(z - FAR).square().sum(1) / 0.08 + 2 * math.log(5)
    return torch.logaddexp(-z.square().sum(1) / 2, narrow)


def test_a_narrow_mode_far_away_is_found(generator: torch.Generator) -> None:
    near = torch.randn(1000, 2, dtype=D, generator=generator)
    budget = Budget()
    found = hunt(two, scattered(near, budget, generator), budget, generator)
    good = found.elbo > found.elbo.max() - 4
    assert int(good.sum()) == 2 and budget.spent > 4096
    distance = (found.mean[good][:, None] - torch.stack([0 * FAR, FAR])).norm(dim=2).min(0).values
    assert distance.max() < 0.05
    assert (found.elbo[good] - math.log(2 * math.pi)).abs().max() < 0.3
    both = together(found, found)
    assert {0, 30} <= {round(float(m[0])) for m in both.mean}


def test_a_small_budget_has_few_ascents(generator: torch.Generator) -> None:
    z = torch.randn(500, 2, dtype=D, generator=generator)
    assert len(scattered(z, Budget(), generator)) == 4096
    assert len(scattered(z, Budget(gradients=120_000), generator)) == 100
    assert len(scattered(z, Budget(gradients=10, spent=20), generator)) == 0
    assert len(scattered(torch.randn(500, 100, dtype=D), Budget(), generator)) == 0


def test_a_peak_inside_a_wide_region_is_a_region_of_its_own(generator: torch.Generator) -> None:
    def needle(z: Tensor) -> Tensor:
        narrow = -(z - 0.5).square().sum(1) / 2e-4 + math.log(3000)
        return torch.logaddexp(-z.square().sum(1) / 2, narrow)

    wide = torch.randn(50, 2, dtype=D, generator=generator)
    starts = torch.cat([wide, torch.full((5, 2), 0.52, dtype=D)])
    found = hunt(needle, starts, Budget(), generator)
    widths = found.factor.diagonal(dim1=1, dim2=2).log().mean(1).exp()
    assert widths.min() < 0.02 and widths.max() > 0.5
