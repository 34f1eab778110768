"""Two-dimensional densities: annealing, chains and an amortized sampler against the exact grid."""

from __future__ import annotations

__all__ = ["EXAMPLES", "Explored", "Grid", "Panel", "exact_grid", "explore"]

import math
import threading
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from damc.amortize import Amortizer, distill
from damc.app.expressions import parse
from damc.app.jobs import Job
from damc.density import LogProb
from damc.errors import BadInput, Diverged
from damc.kernels.base import State
from damc.kernels.mala import MALA
from damc.kernels.mover import Budget
from damc.kernels.pilot import pilot
from damc.kernels.smc import Annealed, anneal
from damc.randomness import global_seed
from damc.sampling.draws import Draws
from damc.sampling.sample import sample

EXAMPLES = {
    "banana": "-x^2/2 - 2*(y - x^2)^2",
    "ring": "-(sqrt(x^2 + y^2) - 3)^2 / 0.1",
    "four modes": (
        "logsumexp(-(x-3)^2 - (y-3)^2, -(x+3)^2 - (y-3)^2,\n"
        "          -(x-3)^2 - (y+3)^2, -(x+3)^2 - (y+3)^2)"
    ),
    "far apart, one wide": (
        "logsumexp(-((x-8)^2 + y^2) / 0.5, -((x+8)^2 + y^2) / 8 - log(16) - log(2))"
    ),
    "waves": "-(y - sin(2*x))^2 / 0.08 - x^2 / 8",
    "funnel": "-y^2/18 - x^2 / (2*exp(y)) - y/2",
}
"""Log-densities to start from, by name."""

POINTS = 2048  # of every way
_CELLS = 240  # a side of the exact grid
_COARSE = 20  # cells a side in which points are counted
_BORDER = 1e-3  # of the mass may lie in the outermost cells
_MOVES = 100  # of the plain chains
_ITERATIONS = 40  # of the sampler
_MINUTES = 0.5  # of `damc.sample`
_INITIAL = threading.Lock()  # torch's own random state, which gives first weights, is one for all


@dataclass(frozen=True)
class Grid:
    """The exact density, by its value in every cell of a box.

    Attributes:
        low, high: corners of the box, ``(2,)`` each.
        mass: share of each cell, ``(R, R)``: rows are y, upwards.
        log_evidence: log of the integral over the box.
        complete: whether the box holds all of it, as far as its border tells.
    """

    low: Tensor
    high: Tensor
    mass: Tensor
    log_evidence: float
    complete: bool

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n points, ``(n, 2)``: a cell by its mass, then a uniform point in it."""
        side = len(self.mass)
        edges = self.mass.flatten().cumsum(0)
        u = torch.rand(n, 3, generator=generator, dtype=edges.dtype)
        cell = torch.searchsorted(edges, u[:, 0].contiguous() * edges[-1]).clamp(max=side**2 - 1)
        corner = torch.stack([cell % side, cell // side], 1)
        return self.low + (corner + u[:, 1:]) / side * (self.high - self.low)

    def distance(self, z: Tensor) -> float:
        """Total variation between points z ``(n, 2)`` and the density, in 20 x 20 cells: 0 to 1.

        Exact draws are not at 0 either, as they are counted, too.
        """
        cell = ((z.to(self.low) - self.low) / (self.high - self.low) * _COARSE).floor()
        inside = ((cell >= 0) & (cell < _COARSE)).all(1)
        index = (cell[inside, 1] * _COARSE + cell[inside, 0]).long()
        counted = torch.bincount(index, minlength=_COARSE**2).double() / len(z)
        step = len(self.mass) // _COARSE
        exact = self.mass.view(_COARSE, step, _COARSE, step).sum((1, 3)).flatten()
        outside = 1 - float(inside.double().mean())
        return (float((counted - exact).abs().sum()) + outside) / 2


@dataclass(frozen=True)
class Panel:
    """Points of one way of sampling.

    Attributes:
        title: what it is.
        points: ``(n, 2)``, or None if there are none.
        note: how far it is, or what went wrong.
        gradients: of the log-density that it took.
        distance: of its points to the grid, see `Grid.distance`.
        done: whether it goes no further.
    """

    title: str
    points: Tensor | None = None
    note: str = ""
    gradients: int = 0
    distance: float | None = None
    done: bool = False


@dataclass(frozen=True)
class Explored:
    """All that is known so far about a density.

    Attributes:
        text: the expression.
        grid: the exact density.
        panels: ways of sampling it, by name, in the order in which they are tried.
        draws: of `damc.sample`, the last to be made.
        progress: the share of the work that is done.
        doing: what is being done.
    """

    text: str
    grid: Grid
    panels: dict[str, Panel] = field(default_factory=dict)
    draws: Draws | None = None
    progress: float = 0.0
    doing: str = ""


def exact_grid(log_prob: LogProb, around: Tensor) -> Grid:
    """The density on a box that grows from points ``(n, 2)`` until its border is empty.

    Raises:
        Diverged: if the density is 0 in all cells.
    """
    low, high = around.double().quantile(0.02, 0), around.double().quantile(0.98, 0)
    middle, half = (low + high) / 2, ((high - low) / 2).clamp(min=1e-3) * 1.5
    for _ in range(5):
        grid = _grid(log_prob, middle - half, middle + half)
        border = torch.ones_like(grid.mass)
        border[4:-4, 4:-4] = 0
        if float((grid.mass * border).sum()) < _BORDER:
            return replace(grid, complete=True)
        half = half * 1.6
    return grid


def explore(text: str, seed: int, job: Job) -> None:
    """Samples a typed density in every way, and says `Explored` to the job as it goes.

    Args:
        text: the log-density, an expression of `damc.app.expressions`.
        seed: of everything random.
        job: that watches it and may stop it.
    """
    if not 0 <= seed < 2**31:
        raise BadInput(f"seed must lie between 0 and 2147483647, got {seed}")
    target = job.watched(parse(text))
    generator = torch.Generator().manual_seed(seed)
    budget = Budget(seconds=60.0)
    found = pilot(target, 2, budget=budget, generator=generator)
    grid = exact_grid(target, found.points)
    seen = Explored(text, grid, doing="annealing", progress=0.05)
    exact = grid.sample(POINTS, generator)
    floor = Panel("exact draws", exact, "from the grid", 0, grid.distance(exact), True)
    seen = _with(seen, floor, "annealing", 0.1)
    job.say(seen)

    frames = 0

    def annealing(beta: float, z: Tensor) -> None:
        nonlocal frames
        frames += 1
        if frames % 2 == 0 or beta == 1:
            panel = Panel("annealing", z.clone(), f"beta = {beta:.3g}", budget.spent)
            job.say(_with(seen, panel, "annealing", 0.1 + 0.2 * beta))

    annealed = anneal(
        target,
        found.reference,
        particles=POINTS,
        budget=budget,
        generator=generator,
        callback=annealing,
    )
    z = annealed.state.z
    words = f"{len(annealed.temperatures)} temperatures"
    seen = _with(seen, Panel("annealing", z, words, budget.spent), "chains", 0.3, done=True)
    job.say(seen)
    for way in (_chains, _sampler):
        seen = way(seen, target, annealed, seed, job)
        job.say(seen)
    draws = sample(target, 2, POINTS, seed=seed, minutes=_MINUTES)
    last = Panel("damc.sample", draws.samples, "verdict below", draws.gradient_calls)
    job.say(replace(_with(seen, last, "done", 1.0, done=True), draws=draws))


def _chains(seen: Explored, target: LogProb, _: Annealed, seed: int, job: Job) -> Explored:
    """Plain MALA chains from N(0, I), which is what most people would try first."""
    generator = torch.Generator().manual_seed(seed)
    kernel, part, calls = MALA(0.5, 1), _MOVES // 5, 0
    state: State | Tensor = torch.randn(POINTS, 2, generator=generator, dtype=torch.float64)
    try:
        for k in range(5):
            state, info = kernel.run(state, target, generator, steps=part)
            calls += info.gradient_calls
            panel = Panel("chains", state.z, f"{(k + 1) * part} moves of MALA", calls)
            seen = _with(seen, panel, "chains", 0.3 + 0.04 * (k + 1), done=k == 4)
            job.say(seen)
    except Diverged as error:
        seen = _with(seen, Panel("chains", note=str(error)), "sampler", 0.5, done=True)
    return seen


def _sampler(seen: Explored, target: LogProb, annealed: Annealed, seed: int, job: Job) -> Explored:
    """An amortized sampler, distilled from short chains; they start at the annealed particles."""
    generator = torch.Generator().manual_seed(seed)
    z = annealed.state.z.float()
    with _INITIAL, global_seed(seed):
        q = Amortizer(
            2,
            capacity=0.5,
            widths=(64, 128, 128),
            standardize=True,
            solver="multistep",
            steps=20,
        )
    kernel = MALA(0.5, 10, scale=z.std(0).clamp(min=1e-6))

    def learning(k: int, copy: Amortizer) -> None:
        job.check()
        if (k + 1) % 8 == 0:
            points = copy.sample(POINTS, generator=torch.Generator().manual_seed(seed))
            panel = Panel("amortized sampler", points, f"{k + 1} of {_ITERATIONS} iterations")
            job.say(_with(seen, panel, "amortized sampler", 0.5 + 0.4 * (k + 1) / _ITERATIONS))

    try:
        history = distill(
            q,
            target,
            kernel,
            iterations=_ITERATIONS,
            batch=256,
            updates=8,
            learning_rate=2e-3,
            starts=z,
            fresh=0.2,
            sampling={"solver": "multistep", "steps": 10},
            generator=generator,
            progress=False,
            callback=learning,
        )
        points = q.sample(POINTS, generator=generator)
        words = f"{_ITERATIONS} iterations"
        panel = Panel("amortized sampler", points, words, history.gradient_calls)
    except Diverged as error:
        panel = Panel("amortized sampler", note=str(error))
    return _with(seen, panel, "verdict", 0.9, done=True)


def _with(
    seen: Explored, panel: Panel, doing: str, progress: float, *, done: bool = False
) -> Explored:
    """What is known, with one more panel or a newer one."""
    if panel.points is not None:
        distance = seen.grid.distance(panel.points)
        panel = replace(panel, distance=distance, done=done or panel.done)
    panels = {**seen.panels, panel.title: panel}
    return replace(seen, panels=panels, doing=doing, progress=progress)


def _grid(log_prob: LogProb, low: Tensor, high: Tensor) -> Grid:
    """The density in the middles of the cells of a box."""
    share = (torch.arange(_CELLS, dtype=torch.float64) + 0.5) / _CELLS
    x = low[0] + share * (high[0] - low[0])
    y = low[1] + share * (high[1] - low[1])
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).view(-1, 2)
    value = log_prob(points).nan_to_num(nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
    total = float(value.logsumexp(0))
    if not math.isfinite(total):
        raise Diverged("the density is 0, or not a number, wherever it was looked at")
    cell = float(((high - low) / _CELLS).log().sum())
    mass = (value - total).exp().view(_CELLS, _CELLS)
    return Grid(low, high, mass, total + cell, False)
