"""Tasks of simulation-based inference with a known likelihood and reference draws.

The four tasks are those of Lueckmann et al. 2021 (https://github.com/sbi-benchmark/sbibm), whose
observations and reference draws are read from the folder that ``$DAMC_SBIBM`` names; two moons
(Greenberg et al. 2019) has exact draws of its own and needs no file.
"""

from __future__ import annotations

__all__ = ["TASKS", "Task", "folder", "reference"]

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints

from damc.errors import BadInput

D = torch.float64
Simulator = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A family of posteriors p(z | x), one for each observation x.

    Attributes:
        name: of it.
        dim: size of z.
        log_prob: log p(z, x) up to a constant, from z ``(B, d)`` and x ``(B, k)`` to ``(B,)``.
        simulate: n pairs (z, x) of the prior and the simulator.
        support: of z; None for all of R^d.
    """

    name: str
    dim: int
    log_prob: Callable[[Tensor, Tensor], Tensor]
    simulate: Simulator
    support: Any = None


def folder() -> Path | None:
    """Where observations and reference draws of sbibm lie, if they do."""
    found = os.environ.get("DAMC_SBIBM")
    return Path(found) if found else None


def reference(name: str, k: int) -> tuple[Tensor, Tensor]:
    """Observation k = 1, 2, ... of a task, ``(x,)``, and 10,000 draws of its posterior."""
    if name == "two_moons":
        return _moons(k)
    root = folder()
    if root is None:
        raise BadInput(f"$DAMC_SBIBM must name the folder of sbibm's observations, for {name}")
    place = root / name / str(k)
    x = np.loadtxt(place / "observation.csv", delimiter=",", skiprows=1, ndmin=1)
    draws = np.load(place / "reference.npz")["samples"]
    return torch.as_tensor(x, dtype=D), torch.as_tensor(draws, dtype=D)


def _uniform(n: int, d: int, bound: float, g: torch.Generator) -> Tensor:
    return bound * (2 * torch.rand(n, d, dtype=D, generator=g) - 1)


def _normal(n: int, d: int, g: torch.Generator) -> Tensor:
    return torch.randn(n, d, dtype=D, generator=g)


def gaussian_linear_uniform() -> Task:
    """z uniform on (-1, 1)^10, x ~ N(z, 0.1 I)."""

    def simulate(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = _uniform(n, 10, 1.0, g)
        return z, z + math.sqrt(0.1) * _normal(n, 10, g)

    return Task(
        "gaussian_linear_uniform",
        10,
        lambda z, x: -(x - z).square().sum(1) / 0.2,
        simulate,
        constraints.interval(-1.0, 1.0),
    )


def gaussian_mixture() -> Task:
    """z uniform on (-10, 10)^2, x ~ N(z, I) or N(z, 0.01 I) with equal chances."""

    def simulate(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = _uniform(n, 2, 10.0, g)
        coin = torch.rand(n, 1, dtype=D, generator=g) < 0.5
        return z, z + torch.where(coin, 1.0, 0.1) * _normal(n, 2, g)

    def log_prob(z: Tensor, x: Tensor) -> Tensor:
        squared = (x - z).square().sum(1)
        return torch.logaddexp(-squared / 2, -squared / 0.02 - math.log(0.01))

    support = constraints.interval(-10.0, 10.0)
    return Task("gaussian_mixture", 2, log_prob, simulate, support)


def slcp() -> Task:
    """Four points of a two-dimensional normal whose mean and covariance z decides."""

    def law(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and the entries of the covariance's Cholesky factor."""
        a, b, r = z[:, 2].square(), z[:, 3].square(), torch.tanh(z[:, 4])
        first = (a.square() + 1e-6).sqrt()
        lower = r * a * b / first
        return z[:, :2], first, lower, (b.square() + 1e-6 - lower.square()).sqrt()

    def simulate(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = _uniform(n, 5, 3.0, g)
        mean, first, lower, second = law(z)
        w = _normal(4 * n, 2, g).view(n, 4, 2)
        x1 = first[:, None] * w[..., 0]
        x2 = lower[:, None] * w[..., 0] + second[:, None] * w[..., 1]
        return z, (mean[:, None] + torch.stack([x1, x2], 2)).flatten(1)

    def log_prob(z: Tensor, x: Tensor) -> Tensor:
        mean, first, lower, second = law(z)
        error = x.view(-1, 4, 2) - mean[:, None]
        w1 = error[..., 0] / first[:, None]
        w2 = (error[..., 1] - lower[:, None] * w1) / second[:, None]
        return -(w1.square() + w2.square()).sum(1) / 2 - 4 * (first.log() + second.log())

    return Task("slcp", 5, log_prob, simulate, constraints.interval(-3.0, 3.0))


def bernoulli_glm() -> Task:
    """Spikes of a neuron that filters a stimulus; x holds sufficient statistics."""
    root = folder()
    if root is None:
        raise BadInput("$DAMC_SBIBM must name the folder of sbibm's observations, for its design")
    file = root / "bernoulli_glm" / "design_matrix.csv"
    try:
        design = np.loadtxt(file, delimiter=",")
    except ValueError:
        design = np.loadtxt(file, delimiter=",", skiprows=1)
    X = torch.as_tensor(design, dtype=D)
    difference = torch.eye(9, dtype=D) - torch.diag(torch.ones(8, dtype=D), -1)
    f = difference @ difference + torch.diag((torch.arange(9, dtype=D) / 9).sqrt())
    precision = torch.zeros(10, 10, dtype=D)
    precision[0, 0], precision[1:, 1:] = 0.5, f.T @ f
    factor = torch.linalg.cholesky(torch.linalg.inv(precision))

    def simulate(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = _normal(n, 10, g) @ factor.T
        spikes = torch.rand(n, len(X), dtype=D, generator=g) < torch.sigmoid(z @ X.T)
        return z, spikes.to(D) @ X

    def log_prob(z: Tensor, x: Tensor) -> Tensor:
        prior = -((z @ precision.to(z)) * z).sum(1) / 2
        return prior + (x * z).sum(1) - F.softplus(z @ X.T.to(z)).sum(1)

    return Task("bernoulli_glm", 10, log_prob, simulate)


def two_moons() -> Task:
    """z uniform on (-1, 1)^2; the posterior is a pair of crescents of width 0.01."""

    def simulate(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = _uniform(n, 2, 1.0, g)
        return z, _crescent(n, g) + _shift(z)

    def log_prob(z: Tensor, x: Tensor) -> Tensor:
        p = x - _shift(z)
        u = p - p.new_tensor([0.25, 0.0])
        r = u.norm(dim=1).clamp(min=1e-12)
        value = -((r - 0.1) / 0.01).square() / 2 - r.log()
        return torch.where(u[:, 0] > 0, value, -math.inf)

    return Task("two_moons", 2, log_prob, simulate, constraints.interval(-1.0, 1.0))


def _crescent(n: int, g: torch.Generator) -> Tensor:
    angle = math.pi * (torch.rand(n, dtype=D, generator=g) - 0.5)
    r = 0.1 + 0.01 * torch.randn(n, dtype=D, generator=g)
    return torch.stack([r * angle.cos() + 0.25, r * angle.sin()], 1)


def _shift(z: Tensor) -> Tensor:
    return torch.stack([-(z[:, 0] + z[:, 1]).abs(), z[:, 1] - z[:, 0]], 1) / math.sqrt(2)


def _moons(k: int, n: int = 10_000) -> tuple[Tensor, Tensor]:
    """Observation k, and exact draws: the map of z to the crescent's point is linear but for a sign
    that is free."""
    g = torch.Generator().manual_seed(10_000 + k)
    x = two_moons().simulate(1, g)[1][0]
    found: list[Tensor] = []
    while sum(map(len, found)) < n:
        p = _crescent(4 * n, g)
        total = math.sqrt(2) * (p[:, 0] - x[0])
        difference = math.sqrt(2) * (x[1] - p[:, 1])
        sign = torch.where(torch.rand(len(p), dtype=D, generator=g) < 0.5, 1.0, -1.0)
        z = torch.stack([sign * total - difference, sign * total + difference], 1) / 2
        found.append(z[(total >= 0) & (z.abs() < 1).all(1)])
    return x, torch.cat(found)[:n]


TASKS: dict[str, Callable[[], Task]] = {
    "gaussian_linear_uniform": gaussian_linear_uniform,
    "gaussian_mixture": gaussian_mixture,
    "bernoulli_glm": bernoulli_glm,
    "slcp": slcp,
    "two_moons": two_moons,
}
