"""The paper's toy example: amortize the posteriors of a two-dimensional model, then test samples.

The sampler q(z | x) learns from short chains on fresh observations. Its samples for held-out
observations, those of long chains and a second exact set are each compared with exact samples of
the posterior (paper, appendix "Toy Examples"; the exact posterior is ours).
"""

from __future__ import annotations

__all__ = ["long_run", "run_toy", "train_sampler"]

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from damc.amortize import Amortizer, History, distill
from damc.density import Target, as_log_prob
from damc.disk import on_disk, write_atomically
from damc.errors import BadInput
from damc.kernels.base import Kernel, State
from damc.kernels.independence import Gaussian, Independence
from damc.kernels.langevin import Langevin
from damc.kernels.mala import MALA
from damc.randomness import global_seed
from damc.toy.pictures import (
    density_images,
    draw_pooled,
    draw_posteriors,
    exact_points,
    most_divided,
)
from damc.toy.problem import ToyModel
from damc.toy.settings import ToySettings
from damc.toy.table import compare


def run_toy(
    out: str | Path,
    seed: int = 0,
    prior: Literal["pinwheel", "gaussian"] = "pinwheel",
    iterations: int | None = None,
    *,
    settings: ToySettings | None = None,
    target: Target | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains, tests and draws; writes results.json, history.json, the sampler and two pictures.

    Args:
        out: folder to write into.
        seed: decides the model's network, the sampler's first weights and every draw.
        prior: the prior of the chains; the data come from the pinwheel in both cases.
        iterations: instead of those in `settings`.
        settings: all other numbers.
        target: the target density of the chains, ``(z, x) -> (B,)``; by default the model's
            posterior. A wrong one shows that the table detects wrong chains.
        progress: show progress bars.

    Returns:
        The content of results.json; `damc.toy.table.table` prints it.
    """
    settings = settings or ToySettings()
    if iterations is not None:
        settings = replace(settings, iterations=iterations)
    out = Path(out)
    with on_disk("write in", out):
        out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise BadInput(f"out must be a folder that can be written to, got {out}")
    data, training, testing, drawing = _streams(seed, 4)
    begin = time.perf_counter()

    model = ToyModel(prior, seed)
    target = model if target is None else target
    _, x = model.draw(settings.heldout, data)
    _, pooled_x = model.draw(settings.pooled, data)
    posteriors = model.grid_posteriors(x)
    densities = density_images(posteriors)
    shown = most_divided(densities, settings.shown)

    frames = _Frames(settings, x[shown], pooled_x, drawing)
    q, history = train_sampler(model, target, settings, seed, training, frames, progress)
    trained = time.perf_counter()

    clock = _Clock()
    kinds: list[tuple[str, Tensor, int, float]] = []
    mine = _sample(q, x, settings.samples, testing)
    kinds.append(("q(z|x)", mine, 0, clock.lap()))
    kernel = _kernel(settings, model)
    flat_x = x.repeat_interleave(settings.samples, 0)
    state, info = kernel.run(
        mine.flatten(0, 1), as_log_prob(target, flat_x), testing, steps=settings.extra_steps
    )
    cost = info.gradient_calls // len(flat_x)
    moved = state.z.view_as(mine)
    kinds.append((f"q(z|x) + {settings.extra_steps:,} steps", moved, cost, clock.lap()))
    ends = long_run(target, torch.cat([flat_x, pooled_x]), settings, testing, progress)
    long, pooled_long = ends[: len(flat_x)].view_as(mine), ends[len(flat_x) :]
    long_name = f"Langevin, {settings.long_steps:,} steps"
    kinds.append((long_name, long, settings.long_steps, clock.lap()))
    exact = torch.stack([p.sample(settings.samples, testing) for p in posteriors])
    clock.lap()
    again = torch.stack([p.sample(settings.samples, testing) for p in posteriors])
    kinds.append(("exact, a second set", again, 0, clock.lap()))

    rows = []
    for name, z, gradients, seconds in _bar(kinds, "two-sample tests", progress):
        rows.append(compare(name, z, exact, testing, gradients=gradients, seconds=seconds))
    tested = time.perf_counter()

    draw_posteriors(
        out / "posteriors.png",
        {**frames.posteriors, long_name.replace(", ", "\n"): long[shown]},
        densities[shown],
        x[shown],
    )
    draw_pooled(
        out / "pooled.png",
        {
            **frames.pooled,
            long_name.replace(", ", "\n"): pooled_long,
            "exact": exact_points(model, pooled_x, drawing),
        },
        model.log_prior,
    )
    q.save(out / "amortizer")
    history.save(out / "history.json")
    result = {
        "seed": seed,
        "prior": prior,
        "settings": asdict(settings),
        "table": [asdict(row) for row in rows],
        "heldout": x.tolist(),
        "gradient_calls": history.gradient_calls,
        "seconds": {
            "train": trained - begin,
            "test": tested - trained,
            "draw": time.perf_counter() - tested,
            "all": time.perf_counter() - begin,
        },
    }
    write_atomically(out / "results.json", json.dumps(result, indent=2) + "\n")
    return result


def long_run(
    target: Target,
    x: Tensor,
    settings: ToySettings,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> Tensor:
    """Ends of `long_steps` unadjusted Langevin moves from N(0, I), one chain for each row of x.

    All chains move in one batch and only their last points are kept, (B, 2) -> (B, 2).
    """
    kernel = Langevin(settings.long_step_size)
    log_prob = as_log_prob(target, x)
    z: Tensor | State = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
    part = 20  # moves between two updates of the progress bar
    for done in _bar(range(0, settings.long_steps, part), "long chains", progress):
        z, _ = kernel.run(z, log_prob, generator, steps=min(part, settings.long_steps - done))
    return z.z if isinstance(z, State) else z


class _Frames:
    """Samples at chosen iterations, for the pictures."""

    def __init__(
        self, settings: ToySettings, x: Tensor, pooled_x: Tensor, generator: torch.Generator
    ) -> None:
        self.settings, self.x, self.pooled_x, self.generator = settings, x, pooled_x, generator
        last = settings.iterations
        self.when = {k for k in settings.snapshots if k <= last} | {last}
        self.posteriors: dict[str, Tensor] = {}  # by title, (shown, drawn, 2)
        self.pooled: dict[str, Tensor] = {}  # by title, (pooled, 2)

    def __call__(self, k: int, q: Amortizer) -> None:
        if k + 1 not in self.when:
            return
        title = f"iteration\n{k + 1:,}"
        settings, generator = self.settings, self.generator
        self.posteriors[title] = _sample(q, self.x, settings.drawn, generator)
        self.pooled[title] = q.sample(x=self.pooled_x, generator=generator)


class _Clock:
    """A stopwatch: seconds since the last lap."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        before, self.last = self.last, time.perf_counter()
        return self.last - before


def train_sampler(
    model: ToyModel,
    target: Target,
    settings: ToySettings,
    seed: int,
    generator: torch.Generator,
    frames: Callable[[int, Amortizer], None],
    progress: bool,
) -> tuple[Amortizer, History]:
    """q(z | x), learned from observations of the model.

    Args:
        model: where observations come from.
        target: p(z | x) for chains, the model itself or one with counted calls.
        settings: all choices.
        seed: of the first weights.
        generator: of everything else that is random.
        frames: called after each iteration with its number and the EMA copy.
        progress: show a bar.
    """
    with global_seed(seed):
        q = Amortizer(
            2,
            context=2,
            embedding=settings.embedding,
            capacity=settings.capacity,
            widths=settings.widths,
            solver=settings.solver,
            steps=settings.solver_steps,
            gamma=settings.gamma,
        )

    def observations() -> Iterator[Tensor]:
        while True:
            yield model.draw(settings.batch, generator)[1]

    history = distill(
        q,
        target,
        _kernel(settings, model),
        iterations=settings.iterations,
        contexts=observations(),
        updates=settings.updates,
        p_uncond=settings.p_uncond,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        ema=settings.ema,
        fresh=settings.fresh,
        sampling={"solver": settings.start_solver, "steps": settings.start_steps},
        clip=settings.clip,
        generator=generator,
        progress=progress,
        callback=frames,
    )
    return q, history


def _kernel(settings: ToySettings, model: ToyModel) -> Kernel:
    size, steps = settings.step_size, settings.steps
    if settings.kernel == "independence":
        prior = model.pinwheel if model.prior == "pinwheel" else Gaussian(2)
        return Independence(
            steps=steps, proposal=prior, local=MALA(size, 1, target_acceptance=None)
        )
    if settings.kernel == "langevin":
        return Langevin(size, steps)
    return MALA(size, steps, target_acceptance=None)


def _sample(q: Amortizer, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """n points of q for every x, (G, 2) -> (G, n, 2)."""
    # One observation at a time: thousands of points together fall out of the processor's cache.
    return torch.stack([q.sample(n, x=one[None], generator=generator)[:, 0] for one in x])


def _streams(seed: int, n: int) -> list[torch.Generator]:
    """Independent generators, so that a longer picture does not change the training."""
    if seed < 0:
        raise BadInput(f"seed must be 0 or more, got {seed}")
    words = np.random.SeedSequence(seed).generate_state(n)
    return [torch.Generator().manual_seed(int(word)) for word in words]


def _bar(items: Any, what: str, progress: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(items, desc=what, disable=not progress)
