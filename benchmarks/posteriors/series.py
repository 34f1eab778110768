"""Time series: autoregression, ARMA(1, 1) and GARCH(1, 1)."""

from __future__ import annotations

__all__ = ["MODELS"]

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.posteriors import tensor


def _ark(d: dict[str, Any]) -> Any:
    y, k = tensor(d["y"]), d["K"]
    past = torch.stack([y[k - j : len(y) - j] for j in range(1, k + 1)], 1)
    now = y[k:]

    def log_prob(u: Tensor) -> Tensor:
        alpha, beta, sigma = u[:, :1], u[:, 1:-1], u[:, -1].exp()
        squares = (now - alpha - beta @ past.T).square().sum(1)
        prior = -u[:, :-1].square().sum(1) / 200 - torch.log1p((sigma / 2.5).square())
        return prior - len(now) * u[:, -1] - squares / (2 * sigma.square()) + u[:, -1]

    return k + 2, log_prob, _last_positive


def _arma(d: dict[str, Any]) -> Any:
    y = tensor(d["y"])

    def log_prob(u: Tensor) -> Tensor:
        mu, phi, theta, sigma = u[:, 0], u[:, 1], u[:, 2], u[:, 3].exp()
        before = torch.cat([mu[:, None], y[:-1].expand(len(mu), -1)], 1)
        e = _recurrence(y - mu[:, None] - phi[:, None] * before, -theta)
        squares = e.square().sum(1)
        prior = -mu.square() / 200 - (phi.square() + theta.square()) / 8
        prior = prior - torch.log1p((sigma / 2.5).square())
        return prior - len(y) * u[:, 3] - squares / (2 * sigma.square()) + u[:, 3]

    return 4, log_prob, _last_positive


def _garch(d: dict[str, Any]) -> Any:
    """(mu, log alpha0, logit alpha1, logit of beta1 / (1 - alpha1))."""
    y, first = tensor(d["y"]), d["sigma1"] ** 2

    def parameters(u: Tensor) -> Tensor:
        alpha1 = torch.sigmoid(u[:, 2])
        beta1 = torch.sigmoid(-u[:, 2]) * torch.sigmoid(u[:, 3])
        return torch.stack([u[:, 0], u[:, 1].exp(), alpha1, beta1], 1)

    def log_prob(u: Tensor) -> Tensor:
        mu, alpha0, alpha1, beta1 = parameters(u).unbind(1)
        square = (y - mu[:, None]).square()
        gain = alpha0[:, None] + alpha1[:, None] * square[:, :-1]
        gain = torch.cat([torch.full_like(mu, first)[:, None], gain], 1)
        variance = _recurrence(gain, beta1)
        total = (variance.log() + square / variance).sum(1)
        jacobian = u[:, 1] + F.logsigmoid(u[:, 2]) + 2 * F.logsigmoid(-u[:, 2])
        jacobian = jacobian + F.logsigmoid(u[:, 3]) + F.logsigmoid(-u[:, 3])
        return -total / 2 + jacobian

    return 4, log_prob, parameters


def _recurrence(c: Tensor, a: Tensor) -> Tensor:
    """e_t = c_t + a e_{t-1} of c ``(B, T)`` and a ``(B,)``, in log T steps.

    With the shift S, (1 - a S)^-1 = (1 + a S) (1 + a^2 S^2) (1 + a^4 S^4) ...
    """
    a, lag = a[:, None], 1
    while lag < c.shape[1]:
        c = torch.cat([c[:, :lag], c[:, lag:] + a * c[:, :-lag]], 1)
        a, lag = a.square(), 2 * lag
    return c


def _last_positive(u: Tensor) -> Tensor:
    return torch.cat([u[:, :-1], u[:, -1:].exp()], 1)


MODELS = {"arK-arK": _ark, "arma-arma11": _arma, "garch-garch11": _garch}
