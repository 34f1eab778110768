"""Amortized posteriors on tasks of simulation-based inference, beside plain MCMC."""

from __future__ import annotations

__all__ = ["chains", "rows", "task_rows"]

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import damc
from benchmarks.sbi_tasks import TASKS, Task, folder, reference
from damc.kernels.base import State
from damc.kernels.mover import Budget, Mover, Possible
from damc.metrics import c2st
from damc.sampling.supports import as_support

OBSERVATIONS = (1, 2, 3, 4, 5)
N = 10_000
COMPARED = 2000  # of the draws, with as many of the reference
NEAR = 0.01  # a C2ST within so much of another counts as equal: the spread of exact draws'
LONGEST = 4  # times the first number of moves, at most


def rows(seeds: Sequence[int] = (0,), names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Every task, or those named; those of sbibm only if $DAMC_SBIBM names its folder."""
    given = names or [name for name in TASKS if name == "two_moons" or folder() is not None]
    return [row for name in given for seed in seeds for row in task_rows(name, seed)]


def task_rows(name: str, seed: int = 0) -> list[dict[str, Any]]:
    """One network; q alone and refined draws of five observations; chains for the first one.

    Seconds are those of the CPU for 10,000 draws.
    """
    task = TASKS[name]()
    start = time.process_time()
    posterior = damc.sample(
        task.log_prob, task.dim, context=task.simulate, support=task.support, seed=seed, minutes=30
    )
    trained = time.process_time() - start
    ways: dict[str, dict[str, Any]] = {
        "q alone": {"refine": False, "check": False},
        "refined": {"check": False},
        "refined and checked": {},
    }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    trusted = 0
    for k in OBSERVATIONS:
        x, exact = reference(name, k)
        for way, options in ways.items():
            start = time.process_time()
            draws = posterior.draws(x, N, seed=k, **options)
            seconds = time.process_time() - start
            same = way == "refined and checked"  # the draws are those of the way before
            value = found["refined"][-1][0] if same else _c2st(draws.samples, exact)
            found[way].append((value, seconds))
            trusted += same and draws.trusted
    goal = found["refined"][0][0]
    table = [
        _row(name, way, values, f"{trusted} of 5" if way == "refined and checked" else "")
        for way, values in found.items()
    ]
    table[0]["training, s"] = round(trained)
    for count in (4, 500):
        value, seconds = chains(task, *reference(name, 1), goal + NEAR, count, seed)
        table.append(_row(name, f"HMC, {count} chains, first x", [(value, seconds)], ""))
    return table


def chains(
    task: Task, x: Tensor, exact: Tensor, goal: float, count: int, seed: int
) -> tuple[float, float]:
    """C2ST and seconds of plain chains: as many moves as it takes to reach the goal, if they do.

    The chains start at the prior, adapt step size and preconditioner in half of the moves as
    damc.sample's do, and are then kept at equal distances.
    """
    support = as_support(task.support, task.dim)
    generator = torch.Generator().manual_seed(seed)
    z = task.simulate(count, generator)[0]
    u = z if support is None else support.inverse(z)

    def conditional(z: Tensor) -> Tensor:
        return task.log_prob(z, x.expand(len(z), -1))

    target = Possible(conditional if support is None else support.pull_back(conditional))
    keep, factor, value, seconds = N // count, 1, 1.0, 0.0
    while value > goal and factor <= LONGEST:
        start = time.process_time()
        mover, budget = Mover(damc.HMC(1.0, leapfrogs=5, target_acceptance=None)), Budget()
        state, kept = State(u, *target.value_and_grad(u)), []
        warm = max(100, keep * factor // 2)
        for _ in range(10):
            state, _ = mover.move(state, target, (warm // 10, warm // 10), budget, generator)
        for _ in range(keep):
            for _ in range(factor):
                state, _ = mover.step(state, target, generator, 1000)
            kept.append(state.z)
        draws = torch.cat(kept)
        seconds = time.process_time() - start
        value = _c2st(draws if support is None else support(draws)[0], exact)
        factor *= 2
    return value, seconds


def _c2st(a: Tensor, b: Tensor) -> float:
    """The larger accuracy of two classifiers, of some draws each, in units of the reference's."""
    g = torch.Generator().manual_seed(0)
    center, scale = b.mean(0), b.std(0)
    some = [z[torch.randperm(len(z), generator=g)[:COMPARED]] for z in (a, b)]
    return c2st(*((z - center) / scale for z in some), generator=g)


def _row(task: str, way: str, values: list[tuple[float, float]], trusted: str) -> dict[str, Any]:
    scores = [value for value, _ in values]
    return {
        "task": task,
        "sampler": way,
        "C2ST": round(sum(scores) / len(scores), 3),
        "worst": round(max(scores), 3),
        "seconds": round(sum(seconds for _, seconds in values) / len(values), 2),
        "training, s": "",
        "trusted": trusted,
    }
