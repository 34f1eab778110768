"""Moves after annealing: sweeps over all particles, and the draws that are chosen from them."""

from __future__ import annotations

__all__ = ["Pool", "chosen", "pool_of", "refine", "tails"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import LogProb
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover, Possible, covariance_factor
from damc.kernels.smc import Annealed, resample
from damc.kernels.tails import HEAVY, Radial, Tilted, tail_index
from damc.sampling.jumps import Jumps
from damc.sampling.thinning import thin
from damc.sampling.verdict import evaluated
from damc.sampling.weights import effective_size

_LEAST = 24  # moves after annealing
_EACH = 8  # draws made for each one kept
_HEAVY_EACH = 40  # where tails are heavy, and no tilt helps
_SWEEPS = 8  # at least, before a short budget ends them
_JUMPS = 3  # after the moves of a sweep
_UNEVEN = 0.2  # the share of a tilted pool that its weights must leave
_BULK = 0.8  # of particles with short tails, those that are where they should be
_BURN_IN = 24  # moves of a tilted pool that are not kept


@dataclass(frozen=True)
class Pool:
    """Many draws, of which few are returned.

    Attributes:
        z: points, ``(sweeps, particles, d)``, island after island.
        value: the log-density that they were drawn from, ``(sweeps, particles)``.
        log_weights: that lead from there to the target.
        unseen: log of how much more mass the draws have than the particles, whose tails are short.
        unseen_error: its standard error, and as much again as it was corrected by.
    """

    z: Tensor
    value: Tensor
    log_weights: Tensor
    unseen: float = 0.0
    unseen_error: float = 0.0


def refine(
    target: LogProb,
    n: int,
    second: Annealed,
    budget: Budget,
    generator: torch.Generator,
    jumps: Jumps | None = None,
) -> tuple[list[State], float]:
    """Sweeps of moves over all particles, each of them a set of draws, and their acceptance."""
    particles, size = second.state.z.shape
    second.mover.adapt(second.state.z)
    least = math.ceil(n / particles)
    heavy = tail_index(second.state.z) > HEAVY and second.mover.straight is not None
    pool = min((_HEAVY_EACH if heavy else _EACH) * n, max(n, 4_000_000 // size))
    most = max(least, math.ceil(pool / particles))
    moves = 1 if jumps else max(3, math.ceil(_LEAST / most))
    state, states, accepted, start = second.state, list[State](), 0.0, budget.spent
    for _ in range(most):
        state, accepted = second.mover.move(
            state, Possible(target), (moves, 2 * moves), budget, generator, adapt=False
        )
        if jumps is not None:
            state = jumps(state, Possible(target), budget, generator, _JUMPS)
        states.append(state)
        enough = len(states) >= least and budget.spent > 2 * start and not heavy
        # Fewer sweeps than draws were asked for repeat some; none at all tell nothing.
        short = budget.left < 0.15 and len(states) >= min(least, _SWEEPS)
        if budget.left <= 0 or enough or short:
            break
    return states, accepted


def pool_of(states: list[State]) -> Pool:
    """The draws of the target itself."""
    value = torch.stack([evaluated(state) for state in states])
    return Pool(torch.stack([state.z for state in states]), value, torch.zeros_like(value))


def tails(
    target: LogProb,
    n: int,
    second: Annealed,
    states: list[State],
    tail_slope: float,
    budget: Budget,
    generator: torch.Generator,
) -> Pool | None:
    """Weighted draws that tell the moments of heavy tails; see `damc.kernels.tails`.

    None if tails are not heavy, if a funnel makes them so, if the budget is spent, or if weights
    are so uneven that plain draws are worth more.

    Args:
        tail_slope: d log m / d log r far away; the tilt must leave a density with an integral.
    """
    every = torch.cat([state.z for state in states])
    index = tail_index(every)
    if index < HEAVY or second.mover.straight is not None or budget.left < 0.1:
        return None
    radial = Radial.fit(every)
    if radial is None:
        return None
    power = min(2.0, 0.5 / index, 0.5 * max(0.0, -tail_slope))
    tilted = Tilted(Possible(target), radial, power)
    z = states[-1].z
    islands = len(second.island_evidence)
    rows = resample(-tilted.log_weights(z).view(islands, -1), generator)
    rows = rows + torch.arange(islands, device=z.device)[:, None] * rows.shape[1]
    z = z[rows.flatten()]
    state = State(z, *tilted.value_and_grad(z))
    scale = covariance_factor(radial.inverse(z))
    kernel = HMC(1.0, leapfrogs=second.mover.kernel.leapfrogs, target_acceptance=None, scale=scale)
    mover = Mover(kernel, straight=radial)
    state, _ = mover.move(state, tilted, (_BURN_IN, _BURN_IN), budget, generator, adapt=False)
    kept = list[State]()
    for _ in range(math.ceil(_EACH * n / len(z))):
        state, _ = mover.move(state, tilted, (3, 3), budget, generator, adapt=False)
        kept.append(state)
        if budget.left < 0.05:
            break
    drawn = pool_of(kept)
    weights = tilted.log_weights(drawn.z.flatten(0, 1)).view_as(drawn.value)
    if effective_size(weights.flatten()) < _UNEVEN * weights.numel():
        return None
    return Pool(drawn.z, drawn.value, weights, *_unseen(radial, every, drawn.z, weights))


def _unseen(radial: Radial, every: Tensor, z: Tensor, log_weights: Tensor) -> tuple[float, float]:
    """What particles miss of heavy tails, in log Z, and its error.

    Annealing gets the mass of the bulk right, and too little of the tails, where few particles get:
    so log Z grows by log(P(bulk) of particles / P(bulk) of the draws that reach the tails).
    """
    here = radial.whiten(every).square().sum(1)
    there = radial.whiten(z.flatten(0, 1)).square().sum(1)
    rank = max(1, int(_BULK * len(here)))
    edge = here.kthvalue(rank).values
    share = torch.softmax(log_weights.flatten(), 0)[there <= edge].sum()
    gain = math.log(rank / len(here)) - float(share.log())
    return gain, math.hypot(gain, math.sqrt((1 - _BULK) / _BULK / z.shape[1]))


def chosen(
    pool: Pool, n: int, island_weights: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """n draws ``(n, d)``, equally many of every island, and their log-weights ``(n,)``."""
    islands, size = len(island_weights), pool.z.shape[2]
    each = math.ceil(n / islands)

    def by_island(part: Tensor) -> Tensor:
        return part.view(len(part), islands, -1, *part.shape[2:]).transpose(0, 1).flatten(1, 2)

    z, value, own = by_island(pool.z), by_island(pool.value), by_island(pool.log_weights)
    own = own - own.logsumexp(1, keepdim=True) + math.log(own.shape[1])  # mean weight 1
    index = thin(z, value, each, generator, own.exp())
    z = z.gather(1, index[..., None].expand(-1, -1, size))
    weights = island_weights[:, None] + own.gather(1, index)
    return z.flatten(0, 1)[:n], weights.flatten()[:n]
