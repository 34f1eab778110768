"""A mixture of two Gaussians and two hidden Markov models of two states."""

from __future__ import annotations

__all__ = ["MODELS"]

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.posteriors import tensor


def _gauss_mix(d: dict[str, Any]) -> Any:
    """(mu_1, log(mu_2 - mu_1), log sigma_1, log sigma_2, logit theta)."""
    y = tensor(d["y"])

    def parameters(u: Tensor) -> Tensor:
        mu = torch.stack([u[:, 0], u[:, 0] + u[:, 1].exp()], 1)
        return torch.cat([mu, u[:, 2:4].exp(), torch.sigmoid(u[:, 4:])], 1)

    def log_prob(u: Tensor) -> Tensor:
        p = parameters(u)
        mu, sigma = p[:, :2, None], p[:, 2:4, None]
        log_theta = torch.stack([F.logsigmoid(u[:, 4]), F.logsigmoid(-u[:, 4])], 1)
        each = log_theta[..., None] - sigma.log() - ((y - mu) / sigma).square() / 2
        likelihood = torch.logsumexp(each, 1).sum(1)
        prior = -(p[:, :4].square().sum(1)) / 8 + 4 * log_theta.sum(1)
        return likelihood + prior + u[:, 1:4].sum(1) + log_theta.sum(1)

    return 5, log_prob, parameters


def _forward(log_emission: Tensor, stay: Tensor, back: Tensor) -> Tensor:
    """log-likelihood by the forward recursion, its matrix products paired up as in a tree.

    Args:
        log_emission: ``(B, T, 2)``.
        stay: logit of the probability to stay in state 1, ``(B,)``.
        back: logit of the probability to go from state 2 to state 1, ``(B,)``.
    """
    rows = [torch.stack([F.logsigmoid(x), F.logsigmoid(-x)], 1) for x in (stay, back)]
    log_a = torch.stack(rows, 1)  # (B, from, to)
    steps = log_a[:, None] + log_emission[:, 1:, None]  # (B, T - 1, from, to)
    while steps.shape[1] > 1:
        pairs = steps.shape[1] // 2
        first, second = steps[:, : 2 * pairs : 2], steps[:, 1 : 2 * pairs : 2]
        product = torch.logaddexp(
            first[..., :1] + second[..., :1, :], first[..., 1:] + second[..., 1:, :]
        )
        steps = torch.cat([product, steps[:, 2 * pairs :]], 1)
    return torch.logsumexp(log_emission[:, 0, :, None] + steps[:, 0], (1, 2))


def _logit_jacobian(u: Tensor) -> Tensor:
    return (F.logsigmoid(u) + F.logsigmoid(-u)).sum(1)


def _ordered(u: Tensor) -> Tensor:
    """0 < x_1 < x_2 of two free numbers."""
    return u.exp().cumsum(1)


def _hmm(d: dict[str, Any]) -> Any:
    y = tensor(d["y"])
    center = tensor([3.0, 10.0])

    def parameters(u: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(u[:, :2]), _ordered(u[:, 2:])], 1)

    def log_prob(u: Tensor) -> Tensor:
        mu = _ordered(u[:, 2:])
        emission = -(y[:, None] - mu[:, None]).square() / 2 - math.log(2 * math.pi) / 2
        prior = -(mu - center).square().sum(1) / 2
        jacobian = _logit_jacobian(u[:, :2]) + u[:, 2:].sum(1)
        return _forward(emission, u[:, 0], u[:, 1]) + prior + jacobian

    return 4, log_prob, parameters


def _hmm_drive(d: dict[str, Any]) -> Any:
    first, second = tensor(d["u"]), tensor(d["v"])
    center = tensor([0.0, 3.0])
    (a, b), (c, e) = d["alpha"]

    def parameters(u: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(u[:, :2]), _ordered(u[:, 2:4]), _ordered(u[:, 4:])], 1)

    def log_prob(u: Tensor) -> Tensor:
        phi, rate = _ordered(u[:, 2:4])[:, None], _ordered(u[:, 4:])[:, None]
        emission = phi.log() - phi * first[:, None] + rate.log() - rate * second[:, None]
        prior = -((phi - center).square() + (rate - center).square()).sum((1, 2)) / 2
        prior = prior + (a - 1) * F.logsigmoid(u[:, 0]) + (b - 1) * F.logsigmoid(-u[:, 0])
        prior = prior + (c - 1) * F.logsigmoid(u[:, 1]) + (e - 1) * F.logsigmoid(-u[:, 1])
        jacobian = _logit_jacobian(u[:, :2]) + u[:, 2:].sum(1)
        return _forward(emission, u[:, 0], u[:, 1]) + prior + jacobian

    return 6, log_prob, parameters


MODELS = {
    "low_dim_gauss_mix-low_dim_gauss_mix": _gauss_mix,
    "hmm_example-hmm_example": _hmm,
    "bball_drive_event_0-hmm_drive_0": _hmm_drive,
}
