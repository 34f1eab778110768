"""Hunting for regions that were missed: short ascents from very many scattered starts.

A chain that never leaves its mode cannot tell that there is another. Ascents from everywhere can,
as long as some start lies where another mode is uphill: a mode of width s at a distance D from a
wider one attracts starts within about s D of it. What lies in a smaller basin than the starts are
dense is found by no method that only evaluates a density.
"""

from __future__ import annotations

__all__ = ["hunt", "scattered", "together"]

import math

import torch
from torch import Tensor

from damc.density import LogProb
from damc.kernels.mover import Budget, covariance_factor
from damc.kernels.pilot import Paths, ascend, distinct, elbo_of

_ROUNDS = 60  # of an ascent
_MOST = 64  # regions kept
_DRAWS = 64  # for the ELBO of a region
_FACTORS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)  # how much further out than the points starts lie


def hunt(
    target: LogProb,
    starts: Tensor,
    budget: Budget,
    generator: torch.Generator | None = None,
) -> Paths:
    """Gaussians where ascents from starts ``(M, d)`` end, with their ELBOs; equal ones once."""
    found = _regions(ascend(target, starts, _ROUNDS, budget, generator, along=False))
    # Afresh, since the largest of many estimates is too large.
    elbo = elbo_of(target, found.mean, found.factor, _DRAWS, budget, generator)
    return Paths(found.mean, found.factor, elbo)


def scattered(z: Tensor, budget: Budget, generator: torch.Generator | None = None) -> Tensor:
    """Starts around points ``(n, d)``, from twice to a hundred times as far out as they are.

    As many as a tenth of the budget bears, and fewer in more dimensions, as each ascent keeps a
    d x d matrix.
    """
    d = z.shape[1]
    most = 4096 if d <= 4 else 1024 if d <= 12 else 256 if d <= 60 else 0
    count = int(min(most, 0.1 * max(0.0, budget.gradients - budget.spent) / (2 * _ROUNDS)))
    factor = covariance_factor(z)
    w = torch.empty(count, z.shape[1], dtype=z.dtype, device=z.device).normal_(generator=generator)
    if factor is not None:
        w = w * factor if factor.ndim == 1 else w @ factor.T
    factors = z.new_tensor(_FACTORS).repeat(-(-count // len(_FACTORS)))[:count, None]
    return z.median(0).values + factors * w


def together(a: Paths, b: Paths) -> Paths:
    """The paths of both, without those that describe a region worse than another."""
    parts = zip((a.mean, a.factor, a.elbo), (b.mean, b.factor, b.elbo), strict=True)
    return distinct(Paths(*(torch.cat(part) for part in parts)))


def _regions(paths: Paths) -> Paths:
    """The best path of each region: one that lies inside a better one's Gaussian belongs to that,
    unless it is much narrower, a peak of its own."""
    d = paths.mean.shape[1]
    inside = d + 3 * math.sqrt(2 * d)
    volume = paths.factor.diagonal(dim1=1, dim2=2).log().sum(1)
    elbo = paths.elbo.clone()
    kept: list[int] = []
    for _ in range(_MOST):
        best = int(elbo.argmax())
        if not float(elbo[best]) > -math.inf:
            break
        kept.append(best)
        away = (paths.mean - paths.mean[best]).T
        w = torch.linalg.solve_triangular(paths.factor[best], away, upper=False).square().sum(0)
        elbo[(w < inside) & (volume > volume[best] - 3)] = -math.inf
        elbo[best] = -math.inf
    return Paths(paths.mean[kept], paths.factor[kept], paths.elbo[kept])
