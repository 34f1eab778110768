"""Scale mixtures: Gaussians whose samples are near the mean or far from it all together.

The details of one image are strong or faint together, so that codes have heavier tails in all
directions at once than a Gaussian, however many directions are uncorrelated.
"""

from __future__ import annotations

__all__ = ["fit_scales", "scale_grid"]

import math

import torch
from torch import Tensor

from damc.amortize.mixture import GaussianMixture
from damc.errors import BadInput

_SMALLEST, _LARGEST = 0.4, 2.5


def scale_grid(count: int) -> Tensor:
    """The scales s, ``(count,)``, an odd number: 0.4 to 2.5 in equal ratios, 1 in the middle."""
    if count % 2 == 0:
        raise BadInput(f"store_scales must be odd, got {count}")
    if count == 1:
        return torch.ones(1)
    return torch.logspace(math.log10(_SMALLEST), math.log10(_LARGEST), count)


def fit_scales(
    z: Tensor,
    mixture: GaussianMixture,
    scales: Tensor,
    shares: Tensor,
    *,
    iterations: int,
) -> tuple[GaussianMixture, Tensor]:
    """Expectation-maximization of sum_k w_k sum_j p_kj N(z; m_k, s_j^2 L_k L_k^T).

    With a single scale of 1 it is that of a mixture of Gaussians.

    Args:
        z: points, ``(N, d)``.
        mixture: w, m and L to begin with.
        scales: s, ``(J,)``, which stay.
        shares: p to begin with, ``(K, J)``, whose rows add up to one.
        iterations: how many.

    Returns:
        w, m and L as a mixture, and p.
    """
    like, z = z, z.detach().double().cpu()
    s, p = scales.double().cpu(), shares.double().cpu()
    w, m, factors = (v.double().cpu() for v in (mixture.weights, mixture.means, mixture.factors))
    floor = max(1e-6, 1e-4 * float(z.var(0).mean())) * torch.eye(z.shape[1], dtype=z.dtype)
    least = torch.finfo(z.dtype).tiny
    for _ in range(iterations):
        white = torch.linalg.solve_triangular(factors, (z - m[:, None]).mT, upper=False)
        squares = white.square().sum(1)[:, None] / s[:, None] ** 2  # (K, J, N)
        log_scale = factors.diagonal(dim1=1, dim2=2).log().sum(1)[:, None] + z.shape[1] * s.log()
        log_each = ((w[:, None] * p).clamp(min=least).log() - log_scale)[..., None] - squares / 2
        found = log_each.flatten(0, 1).softmax(0).view_as(log_each)
        total = found.sum((1, 2)).clamp(min=least)
        w, p = total / total.sum(), found.sum(2) / total[:, None]
        precise = (found / s[:, None] ** 2).sum(1)  # (K, N)
        m = (precise @ z) / precise.sum(1, keepdim=True).clamp(min=least)
        covariances = []
        for mean, weight, n in zip(m, precise, total, strict=True):
            apart = z - mean
            covariances.append((weight[:, None] * apart).mT @ apart / n)
        factors = torch.linalg.cholesky(torch.stack(covariances) + floor)
    return GaussianMixture(w.to(like), m.to(like), factors.to(like)), p.to(like)
