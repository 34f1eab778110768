"""Amortized samplers against targets whose exact law is known."""

from __future__ import annotations

__all__ = ["LinearGaussian", "gaussian_posterior", "mixture", "rows"]

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from damc import MALA, Amortizer, Gaussian, Independence, distill
from damc.amortize import History
from damc.metrics import c2st
from damc.sampling.conditional import amortize

FEW = {"solver": "multistep", "steps": 10}


def rows(seed: int = 0) -> list[dict[str, Any]]:
    """Both targets."""
    return [gaussian_posterior(seed), mixture(seed)]


class LinearGaussian:
    """z ~ N(0, I) in 8 dimensions, x = A z + N(0, 0.5^2 I): the posterior is Gaussian for every x.

    Args:
        generator: draws A, and everything after it.
    """

    dim, sigma = 8, 0.5

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.a = torch.randn(self.dim, self.dim, generator=generator) / math.sqrt(self.dim)
        precision = torch.eye(self.dim) + self.a.T @ self.a / self.sigma**2
        self.covariance = torch.linalg.inv(precision)

    def observe(self, n: int) -> Tensor:
        """Fresh x, ``(n, 8)``."""
        z = torch.randn(n, self.dim, generator=self.generator)
        noise = torch.randn(n, self.dim, generator=self.generator)
        return z @ self.a.T + self.sigma * noise

    def log_prob(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(z | x) up to a constant."""
        return (x - z @ self.a.T).square().sum(1) / (-2 * self.sigma**2) - z.square().sum(1) / 2

    def mean(self, x: Tensor) -> Tensor:
        """The posterior's mean, ``(B, 8)``."""
        return x @ self.a @ self.covariance / self.sigma**2

    def exact(self, n: int, x: Tensor) -> Tensor:
        """n posterior samples for each x, ``(n, B, 8)``."""
        noise = torch.randn(n, len(x), self.dim, generator=self.generator)
        return self.mean(x) + noise @ torch.linalg.cholesky(self.covariance).T

    def amortize(self, iterations: int) -> tuple[Amortizer, History]:
        """A sampler distilled from MALA chains."""

        def contexts() -> Iterator[Tensor]:
            while True:
                yield self.observe(500)

        q = Amortizer(self.dim, context=self.dim, capacity=0.5)
        kernel = MALA(0.3, 10, target_acceptance=0.6)
        history = distill(
            q, self.log_prob, kernel, contexts=contexts(), iterations=iterations, updates=12,
            learning_rate=2e-3, p_uncond=0.1, sampling=FEW, generator=self.generator,
        )  # fmt: skip
        return q, history


def gaussian_posterior(seed: int = 0, iterations: int = 2000, n: int = 10_000) -> dict[str, Any]:
    """C2ST of n samples of q(z | x) against n exact ones, averaged over 4 held-out x.

    q learns from 4,096 observations alone, as `damc.sample` amortizes them; its draws are neither
    refined nor weighed.
    """
    problem = LinearGaussian(torch.Generator().manual_seed(seed))
    start = time.perf_counter()
    posterior = amortize(
        problem.log_prob, problem.dim, problem.observe(4096), seed=seed, iterations=iterations,
        minutes=60,
    )  # fmt: skip
    x = problem.observe(4)
    drawn = [posterior.draws(row, n, refine=False, check=False, seed=seed).samples for row in x]
    mine = torch.stack(drawn, 1).float()
    exact, second = problem.exact(n, x), problem.exact(n, x)
    values = [c2st(mine[:, i], exact[:, i], generator=problem.generator) for i in range(4)]
    level = [c2st(second[:, i], exact[:, i], generator=problem.generator) for i in range(4)]
    return {
        "what": "linear-Gaussian posterior, 8-D",
        "measure": f"C2ST, {n:,} samples, mean of 4 x (exact against exact {sum(level) / 4:.4f})",
        "value": round(sum(values) / 4, 4),
        "worst": round(max(values), 4),
        "gradient calls": f"{posterior.gradient_calls:,}",
        "seconds": round(time.perf_counter() - start),
    }


def mixture(seed: int = 0, iterations: int = 250, n: int = 10_000) -> dict[str, Any]:
    """Eight Gaussians of sd 0.5 on a circle of radius 4, chains from a standard normal.

    Total variation between the shares of the modes among n samples and 1/8 each; a sample counts
    for the mode it is nearest to, and must lie within four sd of it.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    angle = torch.arange(8) * (2 * math.pi / 8)
    centers = 4 * torch.stack([angle.cos(), angle.sin()], 1)

    def log_prob(z: Tensor) -> Tensor:
        return torch.logsumexp(-torch.cdist(z, centers).square() / (2 * 0.5**2), 1)

    start = time.perf_counter()
    q = Amortizer(2, capacity=0.5)
    kernel = Independence(steps=10, proposal=Gaussian(2, 4.0), local=MALA(0.3, 1))
    history = distill(
        q, log_prob, kernel, iterations=iterations, updates=12, learning_rate=2e-3,
        sampling=FEW, generator=generator,
    )  # fmt: skip
    distance, mode = torch.cdist(q.sample(n, steps=100, generator=generator), centers).min(1)
    shares = torch.bincount(mode[distance < 2.0], minlength=8) / n
    return {
        "what": "8 Gaussians on a circle, 2-D",
        "measure": f"total variation of mode masses, {n:,} samples",
        "value": round(float((shares - 1 / 8).abs().sum() / 2), 4),
        "worst": f"smallest mode {float(shares.min()):.3f}",
        "gradient calls": f"{history.gradient_calls:,}",
        "seconds": round(time.perf_counter() - start),
    }
