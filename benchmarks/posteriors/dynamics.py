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
        b = f(t + h / 2, torch.add(z, a, alpha=h / 2))
        c = f(t + h / 2, torch.add(z, b, alpha=h / 2))
        d = f(t + h, torch.add(z, c, alpha=h))
        z = torch.add(z, torch.add(a + d, b + c, alpha=2), alpha=h / 6)
        t += h
    return z


_LAYER = [(i / 8) ** 3 for i in range(1, 9)]  # times of the steps to the first observation


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
        own, other = torch.stack([a, -c], 1), torch.stack([-b, e], 1)

        # In logs: populations stay positive, and the likelihood is of their logs.
        def field(t: float, z: Tensor) -> Tensor:
            return torch.addcmul(own, other, z.exp().flip(1))

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
        absorbed, eliminated = dose * ka / volume, -vm / volume

        def field(t: float, c: Tensor) -> Tensor:
            return torch.addcmul(absorbed * torch.exp(-t * ka), eliminated, c / (km + c))

        c, t, seen_at = torch.zeros_like(ka), float(d["t0"]), list[Tensor]()
        # Where km is small, c leaves 0 within a layer as thin: there steps are short.
        for share in _LAYER:
            c = _rk4(field, c, t, float(d["t0"]) + share * (times[0] - d["t0"]) - t, 1)
            t = float(d["t0"]) + share * (times[0] - d["t0"])
        seen_at.append(c)
        for until in times[1:]:
            c = _rk4(field, c, t, (until - t) / 2, 2)
            t = until
            seen_at.append(c)
        levels = torch.stack(seen_at, 1)
        possible = (levels > 0).all(1)
        logs = torch.where(possible[:, None], levels, 1.0).log()
        total = _log_normal(seen, logs, sigma[:, None]).sum(1)
        total = torch.where(possible, total, -math.inf)
        prior = -torch.log1p(torch.stack([ka, km, vm, sigma], 1).square()).sum(1)
        return total + prior + u.sum(1)

    return 4, log_prob, torch.exp


MODELS = {
    "hudson_lynx_hare-lotka_volterra": _lotka_volterra,
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": _one_compartment,
}
