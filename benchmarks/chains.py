"""Better chains for the same gradients: how far each kernel is from the posterior after T moves.

The targets are the linear-Gaussian posterior, whose mean and covariance are known for every x, and
the toy's posteriors, drawn from exactly on a grid. Chains start at N(0, I), far from them; a move
is one gradient (MALA spends one more in a run).
Preconditioned moves are written here: they earn a place in damc only where they win.
"""

from __future__ import annotations

__all__ = ["preconditioned", "rows"]

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.exact import LinearGaussian
from damc import MALA, Diverged, Langevin
from damc.density import LogProb
from damc.kernels.underdamped import Underdamped
from damc.metrics import energy_distance
from damc.toy.problem import ToyModel

Chain = Callable[[Tensor, LogProb, int, torch.Generator], Tensor]


SIZES = (0.1, 0.2, 0.35, 0.6, 1.0)
KERNELS: dict[str, Callable[[float], Chain]] = {
    "Langevin": lambda s: lambda z, p, t, g: Langevin(s, t).run(z, p, g)[0].z,
    "MALA": lambda s: lambda z, p, t, g: MALA(s, t, target_acceptance=None).run(z, p, g)[0].z,
    "Underdamped": lambda s: lambda z, p, t, g: Underdamped(s, t).run(z, p, g)[0].z,
}


def rows(seed: int = 0, n: int = 20_000, moves: tuple[int, ...] = (10, 30)) -> list[dict[str, Any]]:
    """Each kernel at the best of five step sizes, by its distance to the exact law."""
    return [*_gaussian(seed, n, moves), *_toy(seed, n // 5, moves)]


def _gaussian(seed: int, n: int, moves: tuple[int, ...]) -> list[dict[str, Any]]:
    """The linear-Gaussian posterior, by symmetrised divergence."""
    problem = LinearGaussian(torch.Generator().manual_seed(seed))
    x = problem.observe(1)
    kernels = KERNELS | {
        name: partial(_preconditioned, scale)
        for name, scale in (
            ("preconditioned by the exact covariance", torch.linalg.cholesky(problem.covariance)),
            ("preconditioned by its diagonal", problem.covariance.diagonal().sqrt().diag()),
        )
    }
    log_prob = partial(_at, problem, x)
    return [
        {"target": "linear-Gaussian, divergence", "kernel": name, "gradients": t}
        | _best(kernel, [(log_prob, lambda z: _divergence(z, problem, x))], problem.dim, t, n, seed)
        for name, kernel in kernels.items()
        for t in moves
    ]


def _toy(seed: int, n: int, moves: tuple[int, ...]) -> list[dict[str, Any]]:
    """The toy's posteriors, which have several modes, by energy distance, averaged over four x."""
    model = ToyModel(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    _, contexts = model.draw(4, generator)
    targets: list[tuple[LogProb, Callable[[Tensor], float]]] = []
    for x in contexts:
        exact = model.grid_posterior(x).sample(n, generator)
        targets.append((partial(_of_toy, model, x), partial(energy_distance, exact)))
    return [
        {"target": "toy, energy distance", "kernel": name, "gradients": t}
        | _best(kernel, targets, 2, t, n, seed)
        for name, kernel in KERNELS.items()
        for t in moves
    ]


def _best(
    kernel: Callable[[float], Chain],
    targets: Sequence[tuple[LogProb, Callable[[Tensor], float]]],
    dim: int,
    moves: int,
    n: int,
    seed: int,
) -> dict[str, Any]:
    """The smallest mean distance over the targets, and the step size that it has."""
    results = []
    for s in SIZES:
        distances = []
        for log_prob, distance in targets:
            generator = torch.Generator().manual_seed(seed)
            start = torch.randn(n, dim, generator=generator)
            try:
                distances.append(distance(kernel(s)(start, log_prob, moves, generator)))
            except Diverged:  # too large a step is simply not the best one
                distances.append(math.inf)
        results.append((statistics.mean(distances), s))
    best, s = min(results)
    return {"best step size": s, "distance": f"{best:.3g}"}


def _preconditioned(scale: Tensor, step_size: float) -> Chain:
    return partial(preconditioned, step_size=step_size, scale=scale)


def _of_toy(model: ToyModel, x: Tensor, z: Tensor) -> Tensor:
    return model.log_prob(z, x.expand(len(z), -1))


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
