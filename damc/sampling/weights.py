"""Importance weights, smoothed, and what they say of the draws they belong to."""

from __future__ import annotations

__all__ = ["Weights", "effective_size", "smooth", "weights"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.errors import BadInput


@dataclass(frozen=True)
class Weights:
    """Importance weights of draws from q for a target p.

    Attributes:
        log_weights: smoothed, with mean weight 1, ``(n,)``.
        k_hat: the tail index of the weights as they were: below 0.5 they have a variance, above
            0.7 averages of any practical size are unreliable.
        ess: how many independent draws from p the weighted ones are worth.
        log_evidence: log Z, the log of the mean weight.
        log_evidence_error: its standard error.
        elbo: the mean log-weight, a lower bound of log Z.
        eubo: the mean log-weight of draws from p itself, an upper bound; NaN if there are none.
    """

    log_weights: Tensor
    k_hat: float
    ess: float
    log_evidence: float
    log_evidence_error: float
    elbo: float
    eubo: float = math.nan


def weights(log_ratio: Tensor, exact: Tensor | None = None) -> Weights:
    """The weights of log-ratios log p(z) - log q(z) at draws z from q, ``(n,)``.

    Args:
        log_ratio: -inf where a draw is impossible under p.
        exact: the same at draws from p, for the upper bound.
    """
    smoothed, k_hat = smooth(log_ratio)
    n = len(smoothed)
    total = smoothed.logsumexp(0)
    ess = effective_size(smoothed)
    return Weights(
        smoothed - total + math.log(n),
        k_hat,
        ess,
        float(total) - math.log(n),
        math.sqrt(max(0.0, 1 / ess - 1 / n)),
        float(log_ratio.mean()),
        math.nan if exact is None else float(exact.mean()),
    )


def effective_size(log_weights: Tensor) -> float:
    """(sum w)^2 / sum w^2: how many equal weights they are worth."""
    shares = torch.softmax(log_weights, 0)
    return float(1 / shares.square().sum())


def smooth(log_weights: Tensor) -> tuple[Tensor, float]:
    """Pareto-smoothed importance sampling: the largest weights by the quantiles of a fitted tail.

    The M = min(n / 5, 3 sqrt(n)) largest ones are replaced, in their order, by the quantiles of a
    generalized Pareto distribution fitted to them, none above the largest there was (Vehtari,
    Simpson, Gelman, Yao and Gabry, JMLR 2024).

    Returns:
        The smoothed log-weights ``(n,)`` and k-hat, the fitted tail index; infinite if no weight is
        positive, or too few for a fit.
    """
    if log_weights.ndim != 1 or not len(log_weights):
        raise BadInput(f"log_weights must have shape (n,), got {tuple(log_weights.shape)}")
    n = len(log_weights)
    tail = min(n // 5, math.ceil(3 * math.sqrt(n)))
    ordered, order = log_weights.double().sort()
    if tail < 5 or not bool(ordered[-tail - 1] > -math.inf):
        return log_weights.double(), math.inf
    most, cut = ordered[-1], ordered[-tail - 1]
    excess = (ordered[-tail:] - most).exp() - (cut - most).exp()
    if not float(excess[-1]) > 1e-12:  # all of one size
        return log_weights.double(), -math.inf
    k, scale = _generalized_pareto(excess.clamp(min=1e-300))
    level = (torch.arange(tail, dtype=excess.dtype, device=excess.device) + 0.5) / tail
    quantiles = -torch.log1p(-level) if k == 0 else torch.expm1(-k * torch.log1p(-level)) / k
    replaced = ((cut - most).exp() + scale * quantiles).log() + most
    ordered = torch.cat([ordered[:-tail], replaced.clamp(max=float(most))])
    return torch.empty_like(ordered).scatter(0, order, ordered), k


def _generalized_pareto(x: Tensor) -> tuple[float, float]:
    """Shape k and scale of a generalized Pareto distribution of ordered excesses x ``(n,)``.

    The empirical Bayes estimate of Zhang and Stephens (Technometrics 2009), with the weak prior
    towards k = 0.5 of Vehtari et al., worth ten observations.
    """
    n = len(x)
    m = 30 + math.isqrt(n)
    i = torch.arange(1, m + 1, dtype=x.dtype, device=x.device)
    quartile = x[max(0, int(n / 4 + 0.5) - 1)]
    b = 1 / x[-1] + (1 - (m / (i - 0.5)).sqrt()) / (3 * quartile)
    k = torch.log1p(-b[:, None] * x).mean(1)
    log_likelihood = n * ((-b / k).log() - k - 1)
    b_hat = (torch.softmax(log_likelihood.nan_to_num(-math.inf), 0) * b).sum()
    k_hat = torch.log1p(-b_hat * x).mean()
    return float((n * k_hat + 5) / (n + 10)), float(-k_hat / b_hat)
