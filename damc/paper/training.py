"""Train one method in one cell, with the same networks, data and budget for every method."""

from __future__ import annotations

__all__ = ["Budget", "train"]

import json
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from damc.data import Images
from damc.disk import write_atomically
from damc.errors import BadInput
from damc.learn import find_method
from damc.learn.learner import Learner
from damc.learn.presets import Preset
from damc.randomness import global_seed
from damc.tasks.summarize import training_seconds
from damc.train.feed import batches
from damc.train.loop import fit
from damc.train.origin import Origin
from damc.train.run import Run

_PILOTS = 16, 48  # iterations of two schedules that are timed to plan a budget of minutes
_LONG_PILOTS = 80, 180  # the same, if they take at most this share of it
_SHARE = 0.25
_LEAST = 24  # iterations that every budget has
_PRODUCTS = 4  # timed after each of them


@dataclass(frozen=True)
class Budget:
    """How long a method trains: `iterations`, or what fits in `minutes` of CPU time a thread."""

    iterations: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.iterations is None) == (self.minutes is None):
            raise BadInput(
                "a budget must be either iterations or minutes, "
                f"got {self.iterations} and {self.minutes}"
            )


def train(
    preset: Preset,
    method: str,
    images: Images,
    folder: Path,
    budget: Budget,
    *,
    seed: int = 0,
    batch: int | None = None,
    changes: dict[str, Any] | None = None,
    look: Callable[[Learner, float], None] | None = None,
    shares: tuple[float, ...] = (1.0,),
    origin: Origin | None = None,
) -> tuple[Learner, dict[str, float]]:
    """Trains a method on a preset's networks.

    The schedules of learning rates and stages have the length of the budget, so that every method
    is measured at the end of its own schedule. For minutes, three short pilot runs estimate how
    many iterations fit; their result is kept in the folder, so that an interrupted cell resumes the
    same plan.

    All cells get equal work for their minutes, even if the machine is busier during some of them:
    on a CPU the minutes are CPU time of the process, for each of its threads; the pilots measure an
    iteration in units of a matrix product, and the seconds of a product are measured once, by the
    first cell, for all.

    Args:
        preset: networks and recipe.
        method: one of `damc.learn.METHODS`.
        images: to learn from.
        folder: of the cell.
        budget: how long.
        seed: of everything random.
        batch: images an iteration; the preset's number by default.
        changes: settings to change.
        look: called as ``look(learner, share)`` after each of `shares` of the iterations.
        shares: increasing, the last of them 1.
        origin: where the images come from; the run folder remembers it, so that `damc evaluate` and
            others can be given that folder.

    Returns:
        The learner, and its training's iterations, seconds of wall-clock, and seconds of CPU time
        (of the process that ended it, if it was interrupted).
    """
    batch = preset.batch if batch is None else batch
    changes = dict(changes or {})

    def fresh(horizon: int) -> Learner:
        with global_seed(seed):
            return find_method(method).from_preset(preset, **{**changes, "horizon": horizon})

    iterations = budget.iterations
    if iterations is None:
        assert budget.minutes is not None
        plan = folder / "budget.json"
        if plan.is_file():
            iterations = int(json.loads(plan.read_text())["iterations"])
        else:
            products, seconds = _worth(fresh, images, batch, seed, 60 * budget.minutes)
            seconds = _first(folder.parent / "product.json", seconds)
            iterations = max(_LEAST, int(60 * budget.minutes / (products * seconds)))
            found = {"iterations": iterations, "products_each": products, "seconds": seconds}
            write_atomically(plan, json.dumps(found) + "\n")
    learner = fresh(iterations)
    if origin is not None:
        origin.remember(folder / "run")
    cpu = 0.0
    for share in shares:
        start = time.process_time()
        fit(
            learner,
            images,
            iterations=max(1, round(share * iterations)),
            run=folder / "run",
            batch=batch,
            seed=seed,
            flip=preset.flip,
            shift=preset.shift,
            preset=preset.name,
            origin=None if origin is None else origin.settings,
            keep=1,
            accelerator="auto",
        )
        cpu += time.process_time() - start
        if look is not None:
            look(learner.eval(), share)
    seconds = training_seconds(Run.open(folder / "run").metrics())
    took = {"iterations": float(iterations), "seconds": seconds, "cpu_seconds": round(cpu, 1)}
    return learner.eval(), took


def _worth(
    fresh: Callable[[int], Learner], images: Images, batch: int, seed: int, budget: float
) -> tuple[float, float]:
    """The time of an iteration in units of a matrix product, and the seconds of a product.

    It is the difference between two whole schedules, the longer one less the shorter: what a method
    does once, however long it trains, such as fitting a mixture, is in both. What a process does
    once, such as importing, is in a third schedule before them.

    What is done once may still grow with the iterations before it, as a mixture is fitted to up to
    10,000 stored samples, 78 batches of 128. So schedules are longer than that where the `budget`,
    in seconds, allows it.
    """
    first, product = _timed(fresh(_PILOTS[0]), _PILOTS[0], images, batch, seed)
    likely = sum(_LONG_PILOTS) * (first / _PILOTS[0] + _PRODUCTS) * product
    pilots = _LONG_PILOTS if likely <= _SHARE * budget else _PILOTS
    (short, _), (long, product) = (_timed(fresh(n), n, images, batch, seed) for n in pilots)
    more = pilots[1] - pilots[0]
    each = max((long - short) / more, long / (2 * pilots[1]))  # should the clock be that noisy
    return each, product


def _timed(
    learner: Learner, iterations: int, images: Images, batch: int, seed: int
) -> tuple[float, float]:
    """The time of a schedule in units of a matrix product, and the seconds of a product.

    Both are timed alternately, so that other load on the machine slows both.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = found or torch.device("cpu")
    learner.to(device)
    feed = batches(images, batch, seed=seed)
    generator = torch.Generator(device).manual_seed(seed)
    matrix = torch.ones(1024, 1024, device=device)
    iterating, multiplying = 0.0, 0.0
    for k in range(iterations):
        x, index = next(feed)
        times = [_now(device)]
        learner.step(x.to(device), index, generator)
        times.append(_now(device))
        for _ in range(_PRODUCTS):
            matrix @ matrix
        times.append(_now(device))
        if k > 1:  # the first ones pay for memory and threads
            iterating += times[1] - times[0]
            multiplying += times[2] - times[1]
    product = multiplying / (_PRODUCTS * (iterations - 2))
    return iterating / product, product


def _now(device: torch.device) -> float:
    """The time after all pending work of the device; on a CPU, what the process used of it."""
    if device.type == "cpu":
        return time.process_time() / torch.get_num_threads()
    torch.accelerator.synchronize()
    return time.monotonic()


def _first(path: Path, value: float) -> float:
    """The value that some process wrote to `path` first."""
    mine = path.with_name(f"{path.name}.{uuid.uuid4().hex}")  # processes of several machines
    mine.write_text(json.dumps(value))
    try:
        os.link(mine, path)  # atomic, and fails if the file exists
    except FileExistsError:
        pass
    finally:
        mine.unlink()
    return float(json.loads(path.read_text()))
