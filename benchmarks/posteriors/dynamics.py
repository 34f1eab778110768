"""Differential equations: lynx and hare, and a drug that is eliminated."""

from __future__ import annotations

__all__ = ["MODELS"]

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.posteriors import tensor


def _rk4(f: Callable[[float, Tensor], Tensor], z: Tensor, t: float, h: float, steps: int) -> Tensor:
    for _ in range(steps):
        a = f(t, z)
        b = f(t + h / 2, z + h / 2 * a)
        c = f(t + h / 2, z + h / 2 * b)
        d = f(t + h, z + h * c)
        z = z + h / 6 * (a + 2 * b + 2 * c + d)
        t += h
    return z


def _log_normal(y: Tensor, center: Tensor, sigma: Tensor) -> Tensor:
    return -sigma.log() - ((y.log() - center) / sigma).square() / 2


def _lotka_volterra(d: dict[str, Any]) -> Any:
    y0, y = tensor(d["y_init"]), tensor(d["y"])
    center = tensor([1.0, 0.05, 1.0, 0.05])
    width = tensor([0.5, 0.05, 0.5, 0.05])

    def log_prob(u: Tensor) -> Tensor:
        x = u.exp()
        theta, start, sigma = x[:, :4], x[:, 4:6], x[:, 6:]
        a, b, c, e = theta.unbind(1)

        # In logs: populations stay positive, and the likelihood is of their logs.
        def field(t: float, z: Tensor) -> Tensor:
            prey, predator = z.exp().unbind(1)
            return torch.stack([a - b * predator, e * prey - c], 1)

        z = start.log()
        total = _log_normal(y0, z, sigma)
        for n in range(len(y)):
            z = _rk4(field, z, 0.0, 0.2, 5)
            total = total + _log_normal(y[n], z, sigma)
        prior = -((theta - center) / width).square().sum(1) / 2
        prior = prior - (u[:, 6:] + 1).square().sum(1) / 2
        prior = prior - (u[:, 4:6] - math.log(10)).square().sum(1) / 2
        # The priors of start and sigma are Gaussian in the logs; theta has the Jacobian.
        return total.sum(1) + prior + u[:, :4].sum(1)

    return 8, log_prob, torch.exp


def _one_compartment(d: dict[str, Any]) -> Any:
    times, seen = d["times"], tensor(d["C_hat"])
    dose, volume = float(d["D"]), float(d["V"])

    def log_prob(u: Tensor) -> Tensor:
        ka, km, vm, sigma = u.exp().unbind(1)

        def field(t: float, c: Tensor) -> Tensor:
            return dose * ka / volume * torch.exp(-ka * t) - vm / volume * c / (km + c)

        c, t, total = torch.zeros_like(ka), float(d["t0"]), torch.zeros_like(ka)
        for n, until in enumerate(times):
            c = _rk4(field, c, t, (until - t) / 10, 10)
            t = until
            possible = c > 0
            log_c = torch.where(possible, c, 1.0).log()
            total = total + torch.where(possible, _log_normal(seen[n], log_c, sigma), -math.inf)
        prior = -torch.log1p(torch.stack([ka, km, vm, sigma], 1).square()).sum(1)
        return total + prior + u.sum(1)

    return 4, log_prob, torch.exp


MODELS = {
    "hudson_lynx_hare-lotka_volterra": _lotka_volterra,
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": _one_compartment,
}
