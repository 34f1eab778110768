"""Densities with known draws, evidence and masses of their modes."""

from __future__ import annotations

__all__ = ["TARGETS", "Known", "gmm40_means"]

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Dirichlet, Gamma, constraints

D = torch.float64
Draw = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Known:
    """A density about which everything is known.

    Attributes:
        name: of it.
        dim: d.
        log_prob: ``(B, d)`` to ``(B,)``.
        log_evidence: the log of its integral.
        draw: n exact draws.
        support: a constraint, if any.
        modes: which of the modes points belong to, ``(B,)``, or shares of several wells of each
            point, ``(B, k)``.
        masses: of those.
        truth: mean, sd and 5 and 95 % quantiles of every coordinate, ``(4, d)``, in closed form;
            without it, those of 400,000 exact draws.
        judged: how many of the first coordinates are compared; all by default.
    """

    name: str
    dim: int
    log_prob: Callable[[Tensor], Tensor]
    log_evidence: float
    draw: Draw
    support: Any = None
    modes: Callable[[Tensor], Tensor] | None = None
    masses: Tensor | None = None
    truth: Tensor | None = None
    judged: int | None = None


def _normal(n: int, d: int, g: torch.Generator) -> Tensor:
    return torch.randn(n, d, dtype=D, generator=g)


def _moments(mean: Tensor, sd: Tensor, quantile: float) -> Tensor:
    """`Known.truth` of symmetric laws, whose 95 % quantile lies so many sds above the mean."""
    return torch.stack([mean, sd, mean - quantile * sd, mean + quantile * sd])


def gaussian(name: str, mean: list[float], covariance: Tensor) -> Known:
    m, factor = torch.tensor(mean, dtype=D), torch.linalg.cholesky(covariance)
    inverse = torch.linalg.inv(factor)
    d = len(m)
    return Known(
        name,
        d,
        lambda z: -((z - m) @ inverse.T).square().sum(1) / 2,
        float(factor.diagonal().log().sum()) + d / 2 * math.log(2 * math.pi),
        lambda n, g: m + _normal(n, d, g) @ factor.T,
        truth=_moments(m, covariance.diagonal().sqrt(), 1.6448536),
    )


def student() -> Known:
    d, nu = 10, 3
    constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)

    def draw(n: int, g: torch.Generator) -> Tensor:
        return _normal(n, d, g) / _normal(n, nu, g).square().mean(1, keepdim=True).sqrt()

    return Known(
        "Student-t, 3 degrees, 10-D",
        d,
        lambda z: -(nu + d) / 2 * torch.log1p(z.square().sum(1) / nu),
        -constant,
        draw,
        truth=_moments(torch.zeros(d, dtype=D), torch.full((d,), math.sqrt(3), dtype=D), 1.3587151),
    )


def box() -> Known:
    low, high = torch.tensor([0.0, -5.0, 2.0], dtype=D), torch.tensor([1.0, 5.0, 2.1], dtype=D)
    return Known(
        "uniform box",
        3,
        lambda x: 0 * x.sum(1),
        float((high - low).log().sum()),
        lambda n, g: low + (high - low) * torch.rand(n, 3, dtype=D, generator=g),
        constraints.interval(low, high),
    )


def _gammas(shape: Tensor, n: int, g: torch.Generator) -> Tensor:
    return torch._standard_gamma(shape.expand(n, -1).contiguous(), generator=g)


def simplex() -> Known:
    a = torch.tensor([2.0, 3.0, 1.0, 0.5], dtype=D)

    def draw(n: int, g: torch.Generator) -> Tensor:
        x = _gammas(a, n, g)
        return x / x.sum(1, keepdim=True)

    law = Dirichlet(a, validate_args=False)
    return Known("Dirichlet on the simplex", 4, law.log_prob, 0.0, draw, constraints.simplex)


def positive() -> Known:
    a, b = torch.tensor([2.0, 0.5, 9.0], dtype=D), torch.tensor([1.0, 2.0, 0.1], dtype=D)
    law = Gamma(a, b, validate_args=False)
    return Known(
        "three Gammas",
        3,
        lambda x: law.log_prob(x).sum(1),
        0.0,
        lambda n, g: _gammas(a, n, g) / b,
        constraints.positive,
    )


def gmm40_means() -> Tensor:
    """Of the components, ``(40, 2)``."""
    means = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    return ((means - 0.5) * 80).to(D)


def gmm40() -> Known:
    means = gmm40_means()
    s = math.log(1 + math.e)

    def draw(n: int, g: torch.Generator) -> Tensor:
        return means[torch.randint(40, (n,), generator=g)] + s * _normal(n, 2, g)

    def log_prob(z: Tensor) -> Tensor:
        each = -torch.cdist(z, means).square() / (2 * s * s)
        return torch.logsumexp(each, 1) - math.log(40 * 2 * math.pi * s * s)

    return Known(
        "GMM-40",
        2,
        log_prob,
        0.0,
        draw,
        modes=lambda z: torch.cdist(z, means).argmin(1),
        masses=torch.full((40,), 1 / 40, dtype=D),
    )


def many_well() -> Known:
    x = torch.linspace(-4, 4, 400_001, dtype=D)
    density = torch.exp(-(x**4) + 6 * x * x + x / 2)
    cumulative = density.cumsum(0) / density.sum()
    log_z = 16 * (float((density.sum() * (x[1] - x[0])).log()) + math.log(2 * math.pi) / 2)

    def draw(n: int, g: torch.Generator) -> Tensor:
        u = torch.rand(n, 16, dtype=D, generator=g)
        wells = x[torch.searchsorted(cumulative, u).clamp(max=len(x) - 1)]
        return torch.stack([wells, _normal(n, 16, g)], 2).flatten(1)

    def log_prob(z: Tensor) -> Tensor:
        a, b = z[:, ::2], z[:, 1::2]
        return (-(a**4) + 6 * a * a + a / 2 - b * b / 2).sum(1)

    right = float(1 - cumulative[200_000])
    return Known(
        "Many-Well-32",
        32,
        log_prob,
        log_z,
        draw,
        modes=lambda z: (z[:, ::2] > 0).to(D),
        masses=torch.full((16,), right, dtype=D),
    )


def funnel() -> Known:
    def draw(n: int, g: torch.Generator) -> Tensor:
        w = _normal(n, 10, g)
        return torch.cat([3 * w[:, :1], torch.exp(1.5 * w[:, :1]) * w[:, 1:]], 1)

    def log_prob(z: Tensor) -> Tensor:
        x = z[:, 0]
        rest = -(z[:, 1:].square().sum(1) * torch.exp(-x) + 9 * x) / 2
        return -x.square() / 18 + rest - math.log(3) - 5 * math.log(2 * math.pi)

    truth = _moments(torch.zeros(1, dtype=D), torch.full((1,), 3.0, dtype=D), 1.6448536)
    # The others' variance is e^4.5, of which any 10,000 draws see little.
    return Known("Funnel-10", 10, log_prob, 0.0, draw, truth=truth, judged=1)


def _close(d: int, r: float) -> Tensor:
    return torch.full((d, d), r, dtype=D) + (1 - r) * torch.eye(d, dtype=D)


TARGETS = [
    gaussian("N(50, 10^2), 2-D", [50.0, 50.0], 100 * torch.eye(2, dtype=D)),
    gaussian("sds 1 and 0.01", [0.0, 0.0], torch.diag(torch.tensor([1.0, 1e-4], dtype=D))),
    gaussian("correlation 0.999, 5-D", [0.0] * 5, _close(5, 0.999)),
    student(),
    box(),
    simplex(),
    positive(),
    gmm40(),
    many_well(),
    funnel(),
]
