"""Better chains for the same gradients: how far each kernel is from the posterior after T moves.

The target is the linear-Gaussian posterior, whose mean and covariance are known for every x. Chains
start at N(0, I), far from it; a move is one gradient (MALA spends one more in a run).
Preconditioned moves are written here: they earn a place in damc only where they win.
"""

from __future__ import annotations

__all__ = ["preconditioned", "rows"]

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.exact import LinearGaussian
from damc import MALA, Diverged, Langevin
from damc.density import LogProb
from damc.underdamped import Underdamped

Chain = Callable[[Tensor, LogProb, int, torch.Generator], Tensor]


def rows(seed: int = 0, n: int = 20_000, moves: tuple[int, ...] = (10, 30)) -> list[dict[str, Any]]:
    """Each kernel at the best of five step sizes, by symmetrised divergence to the exact law."""
    problem = LinearGaussian(torch.Generator().manual_seed(seed))
    x = problem.observe(1)
    log_prob = partial(_at, problem, x)
    scale = torch.linalg.cholesky(problem.covariance)
    kernels: dict[str, Callable[[float], Chain]] = {
        "Langevin": lambda s: lambda z, p, t, g: Langevin(s, t).run(z, p, g)[0].z,
        "MALA": lambda s: lambda z, p, t, g: MALA(s, t).run(z, p, g)[0].z,
        "Underdamped": lambda s: lambda z, p, t, g: Underdamped(s, t).run(z, p, g)[0].z,
        "preconditioned by the exact covariance": lambda s: partial(
            preconditioned, step_size=s, scale=scale
        ),
        "preconditioned by its diagonal": lambda s: partial(
            preconditioned, step_size=s, scale=problem.covariance.diagonal().sqrt().diag()
        ),
    }
    table = []
    for name, kernel in kernels.items():
        for t in moves:
            results = []
            for s in (0.1, 0.2, 0.35, 0.6, 1.0):
                generator = torch.Generator().manual_seed(seed)
                start = torch.randn(n, problem.dim, generator=generator)
                try:
                    end = kernel(s)(start, log_prob, t, generator)
                except Diverged:  # too large a step is simply not the best one
                    continue
                results.append((_divergence(end, problem, x), s, end))
            best, s, end = min(results, key=lambda result: result[0])
            error = (end.mean(0) - problem.mean(x)[0]).norm() / problem.covariance.trace().sqrt()
            spread = torch.cov(end.T).trace() / problem.covariance.trace()
            table.append(
                {
                    "kernel": name,
                    "gradients": t,
                    "best step size": s,
                    "divergence": f"{best:.3g}",
                    "error of the mean, in sd": f"{float(error):.3f}",
                    "variance, relative": f"{float(spread):.3f}",
                }
            )
    return table


def preconditioned(
    z: Tensor,
    log_prob: LogProb,
    steps: int,
    generator: torch.Generator,
    *,
    step_size: float,
    scale: Tensor,
) -> Tensor:
    """Langevin in the coordinates v with z = scale v, where one step size fits every direction.

    Args:
        z: starts, ``(B, d)``.
        log_prob: the target.
        steps: moves.
        generator: source of all randomness.
        step_size: s in the new coordinates.
        scale: L with L L^T about the target's covariance, ``(d, d)``.
    """
    v = torch.linalg.solve_triangular(scale, z.T, upper=False).T
    state, _ = Langevin(step_size, steps).run(v, lambda v: log_prob(v @ scale.T), generator)
    return state.z @ scale.T


def _at(problem: LinearGaussian, x: Tensor, z: Tensor) -> Tensor:
    return problem.log_prob(z, x)


def _divergence(z: Tensor, problem: LinearGaussian, x: Tensor) -> float:
    """KL(q || p) + KL(p || q) with q the Gaussian of the sample's moments."""
    if not bool(torch.isfinite(z).all()):
        return math.inf
    a, b = torch.cov(z.T.double()), problem.covariance.double()
    shift = (z.mean(0) - problem.mean(x)[0]).double()
    a_inv, b_inv = torch.linalg.inv(a), torch.linalg.inv(b)
    both = (b_inv @ a).trace() + (a_inv @ b).trace() - 2 * len(shift)
    return float((both + shift @ (a_inv + b_inv) @ shift) / 2)
