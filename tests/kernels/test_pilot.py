"""Pilot paths: they find location, shape and modes at any scale, and bound the evidence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import Diverged
from damc.kernels.mover import Budget
from damc.kernels.pilot import ascend, pilot

D = torch.float64


def gaussian(mean: Tensor, factor: Tensor):  # type: ignore[no-untyped-def]
    """An unnormalized Gaussian and its log evidence."""

    def log_prob(z: Tensor) -> Tensor:
        w = torch.linalg.solve_triangular(factor, (z - mean).T, upper=False)
        return -w.square().sum(0) / 2

    log_z = factor.diagonal().log().sum() + len(mean) / 2 * math.log(2 * math.pi)
    return log_prob, float(log_z)


FAR = torch.tensor([5000.0, -20.0, 0.0], dtype=D)
SKEW = torch.tensor([[300.0, 0, 0], [2.0, 0.05, 0], [1e-3, 1e-4, 1e-3]], dtype=D)


def test_paths_find_a_skewed_gaussian_far_away(generator: torch.Generator) -> None:
    log_prob, log_z = gaussian(FAR, SKEW)
    starts = torch.randn(8, 3, dtype=D, generator=generator)
    paths = ascend(log_prob, starts, 100, Budget(), generator)
    best = int(paths.elbo.argmax())
    w = torch.linalg.solve_triangular(SKEW, (paths.mean[best] - FAR)[:, None], upper=False)
    assert w.abs().max() < 0.5
    assert abs(float(paths.elbo[best]) - log_z) < 0.5


def test_the_reference_covers_what_the_paths_found(generator: torch.Generator) -> None:
    log_prob, _ = gaussian(FAR, SKEW)
    found = pilot(log_prob, 3, budget=Budget(), generator=generator)
    sds = (SKEW @ SKEW.T).diagonal().sqrt()
    spread = (found.reference.factor @ found.reference.factor.T).diagonal().sqrt()
    assert ((found.reference.mean - FAR) / sds).abs().max() < 0.5
    assert bool(((spread / sds > 1.1) & (spread / sds < 2.5)).all())


def test_far_modes_are_both_inside_the_reference(generator: torch.Generator) -> None:
    def log_prob(z: Tensor) -> Tensor:
        left, right = (z + 30).square().sum(1), (z - 30).square().sum(1)
        return torch.logaddexp(-left / 2, -right / 2)

    found = pilot(log_prob, 2, budget=Budget(), generator=generator)
    assert {bool(x > 0) for x in found.paths.mean[:, 0]} == {True, False}
    assert found.reference.funnel is None
    w = torch.tensor([[30.0, 30.0], [-30.0, -30.0]], dtype=D) - found.reference.mean
    assert (w @ found.reference.inverse.T).norm(dim=1).max() < 2.5


def test_the_best_gaussian_of_a_funnel_is_not_at_its_optimum(generator: torch.Generator) -> None:
    """The optimum is x_0 = -40.5, where no mass is."""

    def funnel(z: Tensor) -> Tensor:
        x = z[:, 0]
        rest = -z[:, 1:].square().sum(1) * torch.exp(-x) / 2 - 4.5 * x
        return -x.square() / 18 + rest

    paths = ascend(
        funnel, torch.randn(10, 10, dtype=D, generator=generator), 80, Budget(), generator
    )
    assert -8 < float(paths.mean[paths.elbo.argmax(), 0]) < 8
    log_z = math.log(3) + 5 * math.log(2 * math.pi)
    assert float(paths.elbo.max()) < log_z + 0.5


def test_the_reference_of_heavy_tails_is_not_far_too_wide(generator: torch.Generator) -> None:
    """Student t with 3 degrees in 10-D, from starts as far as 100 sds."""
    found = pilot(
        lambda z: -6.5 * torch.log1p(z.square().sum(1) / 3), 10, budget=Budget(),
        generator=generator,
    )  # fmt: skip
    assert 1 < float(found.reference.factor.diagonal().max()) < 6


def test_high_dimensions_use_the_hessian(generator: torch.Generator) -> None:
    d = 80
    factor = torch.randn(d, d, dtype=D, generator=generator).tril_(-1) / d + torch.eye(d)
    mean = torch.arange(d, dtype=D)
    log_prob, log_z = gaussian(mean, factor.to(D))
    found = pilot(log_prob, d, budget=Budget(), generator=generator)
    assert abs(float(found.paths.elbo.max()) - log_z) < 1.5 / math.sqrt(64) + 1e-3
    assert (found.reference.mean - mean).abs().max() < 1e-2


def test_a_density_that_is_finite_nowhere_is_named(generator: torch.Generator) -> None:
    with pytest.raises(Diverged, match="finite at none of"):
        pilot(lambda z: (z[:, 0] - 1e9).log(), 1, budget=Budget(), generator=generator)
