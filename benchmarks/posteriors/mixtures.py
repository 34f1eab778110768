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
    powers = torch.stack([torch.ones_like(y), y, y.square()])

    def parameters(u: Tensor) -> Tensor:
        mu = torch.stack([u[:, 0], u[:, 0] + u[:, 1].exp()], 1)
        return torch.cat([mu, u[:, 2:4].exp(), torch.sigmoid(u[:, 4:])], 1)

    def log_prob(u: Tensor) -> Tensor:
        p = parameters(u)
        mu, precision = p[:, :2], (-2 * u[:, 2:4]).exp()
        log_theta = torch.stack([F.logsigmoid(u[:, 4]), F.logsigmoid(-u[:, 4])], 1)
        # Each log-density is a quadratic in y: all of them by one product.
        level = log_theta - u[:, 2:4] - precision * mu.square() / 2
        terms = torch.stack([level, precision * mu, -precision / 2], 1)  # (B, 3, 2)
        first, second = (terms[..., k] @ powers for k in (0, 1))
        likelihood = torch.logaddexp(first, second).sum(1)
        prior = -(p[:, :4].square().sum(1)) / 8 + 4 * log_theta.sum(1)
        return likelihood + prior + u[:, 1:4].sum(1) + log_theta.sum(1)

    return 5, log_prob, parameters


def _forward(log_emission: Tensor, stay: Tensor, back: Tensor) -> Tensor:
    """log-likelihood by the forward recursion, its matrix products paired up as in a tree.

    Products are of probabilities, each matrix divided by its largest entry, since sums of products
    are many times cheaper than logarithms of sums.

    Args:
        log_emission: ``(T, 2, B)``.
        stay: logit of the probability to stay in state 1, ``(B,)``.
        back: logit of the probability to go from state 2 to state 1, ``(B,)``.
    """
    a = torch.stack([torch.sigmoid(x) for x in (stay, -stay, back, -back)]).view(2, 2, -1)
    most = log_emission.detach().amax(1, keepdim=True)
    emission = (log_emission - most).exp()
    total = most.sum((0, 1))
    steps = a * emission[1:, None]  # (T - 1, from, to, B)
    while len(steps) > 1:
        pairs = len(steps) // 2
        first, second = steps[: 2 * pairs : 2], steps[1 : 2 * pairs : 2]
        product = first[:, :, :1] * second[:, :1] + first[:, :, 1:] * second[:, 1:]
        largest = product.detach().amax((1, 2), keepdim=True)
        total = total + largest.log().sum((0, 1, 2))
        steps = torch.cat([product / largest, steps[2 * pairs :]])
    return total + (emission[0, :, None] * steps[0]).sum((0, 1)).log()


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
        emission = -(y[:, None, None] - mu.T).square() / 2 - math.log(2 * math.pi) / 2
        prior = -(mu - center).square().sum(1) / 2
        jacobian = _logit_jacobian(u[:, :2]) + u[:, 2:].sum(1)
        return _forward(emission, u[:, 0], u[:, 1]) + prior + jacobian

    return 4, log_prob, parameters


def _hmm_drive(d: dict[str, Any]) -> Any:
    first, second = tensor(d["u"]), tensor(d["v"])
    seen = torch.stack([torch.ones_like(first), first, second], 1)
    center = tensor([0.0, 3.0])
    (a, b), (c, e) = d["alpha"]

    def parameters(u: Tensor) -> Tensor:
        return torch.cat([torch.sigmoid(u[:, :2]), _ordered(u[:, 2:4]), _ordered(u[:, 4:])], 1)

    def log_prob(u: Tensor) -> Tensor:
        phi, rate = _ordered(u[:, 2:4]), _ordered(u[:, 4:])
        terms = torch.stack([(phi.log() + rate.log()).T, -phi.T, -rate.T]).flatten(1)
        emission = (seen @ terms).view(len(seen), 2, -1)
        prior = -((phi - center).square() + (rate - center).square()).sum(1) / 2
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
