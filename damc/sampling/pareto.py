"""Importance weights, and how far their mean can be trusted."""

from __future__ import annotations

__all__ = ["effective_size", "pareto_smoothed"]

import math

import torch
from torch import Tensor


def pareto_smoothed(log_weights: Tensor) -> tuple[Tensor, float]:
    """Log-weights ``(n,)`` with the largest ones smoothed, and the shape k of their tail.

    The largest min(n / 5, 3 sqrt(n)) weights are replaced by quantiles of a generalized Pareto
    distribution fitted to them (Vehtari et al. 2024, "Pareto smoothed importance sampling"). With
    k below 0.7 their mean is reliable; above it the proposal misses part of the target, and with
    k > 1 the mean does not exist. k is -inf if fewer than 25 weights are finite.
    """
    n = len(log_weights)
    tail = math.floor(min(n / 5, 3 * math.sqrt(n)))
    shifted = log_weights - log_weights.max()
    if tail < 5 or int((shifted > -math.inf).sum()) < 25:
        return shifted, -math.inf
    order = shifted.argsort()
    cut = shifted[order[-tail - 1]].exp()
    excess = shifted[order[-tail:]].exp() - cut
    if not bool(excess[-1] > 1e-12):  # all the largest are equal
        return shifted, -math.inf
    k, sigma = _generalized_pareto(excess)
    p = (torch.arange(tail, dtype=excess.dtype, device=excess.device) + 0.5) / tail
    quantiles = sigma * torch.expm1(-k * torch.log1p(-p)) / k if k else -sigma * torch.log1p(-p)
    smoothed = shifted.clone()
    smoothed[order[-tail:]] = (cut + quantiles).log().clamp(max=0.0)  # none above the largest seen
    return smoothed, k


def effective_size(log_weights: Tensor) -> float:
    """(sum w)^2 / sum w^2: how many equal weights they are worth."""
    w = (log_weights - log_weights.max()).exp()
    return float(w.sum().square() / w.square().sum())


def _generalized_pareto(x: Tensor) -> tuple[float, float]:
    """Shape and scale from ascending excesses, by Zhang and Stephens 2009, with the weak prior of
    ten observations at k = 0.5 that Vehtari et al. add."""
    n = len(x)
    m = 30 + math.floor(math.sqrt(n))
    j = torch.arange(1, m + 1, dtype=x.dtype, device=x.device)
    quarter = x[max(0, math.floor(n / 4 + 0.5) - 1)].clamp(min=1e-300)
    theta = 1 / x[-1] + (1 - (m / (j - 0.5)).sqrt()) / (3 * quarter)
    k = torch.log1p(-theta[:, None] * x).mean(1)
    profile = n * ((-theta / k).log() - k - 1)
    best = (torch.softmax(profile.nan_to_num(-math.inf), 0) * theta).sum()
    shape = torch.log1p(-best * x).mean()
    sigma = -shape / best
    return float((shape * n + 10 * 0.5) / (n + 10)), float(sigma)
