"""Few steps against many: how near to the exact posterior each way of sampling comes."""

from __future__ import annotations

__all__ = ["rows"]

import statistics
import time
from typing import Any

import torch

from benchmarks.exact import LinearGaussian
from damc.metrics import c2st

WAYS = (
    ("ancestral", 100),
    *((solver, n) for solver in ("multistep", "ddim") for n in (5, 10, 20)),
    ("heun", 5),
    ("heun", 10),
    ("ancestral", 20),
)


def rows(seed: int = 0, iterations: int = 400, n: int = 4000, x: int = 4) -> list[dict[str, Any]]:
    """C2ST against exact samples of the linear-Gaussian posterior, beside that of exact ones.

    Args:
        seed: of everything.
        iterations: of distilling the sampler.
        n: samples for each x.
        x: held-out observations.
    """
    torch.manual_seed(seed)
    problem = LinearGaussian(torch.Generator().manual_seed(seed))
    q, _ = problem.amortize(iterations)
    contexts = problem.observe(x)
    exact = problem.exact(n, contexts)
    second = problem.exact(n, contexts)
    table = []
    level = [c2st(second[:, i], exact[:, i], generator=problem.generator) for i in range(x)]
    for solver, steps in WAYS:
        start = time.perf_counter()
        z = q.sample(n, x=contexts, solver=solver, steps=steps, generator=problem.generator)
        seconds = time.perf_counter() - start
        values = [c2st(z[:, i], exact[:, i], generator=problem.generator) for i in range(x)]
        table.append(
            {
                "solver": solver,
                "steps": steps,
                "network evaluations": steps * (2 if solver == "heun" else 1),
                "C2ST": round(statistics.mean(values), 4),
                "exact against exact": round(statistics.mean(level), 4),
                "standard error": round(statistics.stdev(values) / x**0.5, 4),
                "seconds": round(seconds, 2),
            }
        )
    return table
