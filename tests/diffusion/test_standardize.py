"""Mean and covariance of points, all at once or as they come."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from damc.diffusion.standardize import Standardize


def points(n: int, generator: torch.Generator) -> Tensor:
    factor = torch.tensor([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [-1.0, 0.3, 1.0]])
    return torch.randn(n, 3, generator=generator) @ factor.mT + torch.tensor([3.0, -1.0, 0.0])


def test_followed_batches_are_one_average_that_begins_as_the_standard_normal(
    generator: torch.Generator,
) -> None:
    # N(0, I) with the weight of d points, then every point with weight 1.
    z = points(300, generator).double()
    module = Standardize(3).double()
    for part in torch.split(z, 50):
        module.follow(part, horizon=10**6)
    total = 303
    mean = z.sum(0) / total
    second = (3 * torch.eye(3, dtype=z.dtype) + z.mT @ z) / total
    covariance = second - mean[:, None] * mean
    torch.testing.assert_close(module.location, mean)
    torch.testing.assert_close(module.factor @ module.factor.mT, covariance, rtol=1e-5, atol=1e-5)
    assert float(module.seen) == 300


def test_old_points_are_forgotten_after_the_horizon(generator: torch.Generator) -> None:
    module = Standardize(3)
    for _ in range(10):
        module.follow(100 + torch.randn(100, 3, generator=generator), horizon=1000)
    new = points(20_000, generator)
    for part in torch.split(new, 100):
        module.follow(part, horizon=1000)
    # 20 horizons later the weight of the old points is exp(-20): only the noise of about 1,000
    # to 2,000 effective points is left, 5 standard errors of the mean at most.
    scale = new.std(0)
    assert ((module.location - new.mean(0)).abs() < 5 * scale / 1000**0.5).all()
    ratio = module(new).var(0)
    assert ((ratio - 1).abs() < 0.35).all()


@pytest.mark.parametrize("n", [1, 2])
def test_few_points_keep_a_factor(n: int, generator: torch.Generator) -> None:
    module = Standardize(3)
    module.follow(points(n, generator), horizon=10)
    z = points(7, generator)
    torch.testing.assert_close(module.inverse(module(z)), z, rtol=1e-4, atol=1e-4)
