"""Train one method for one cell: the same networks, data and budget for every method."""

from __future__ import annotations

__all__ = ["Budget", "train"]

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from damc.data import Images
from damc.errors import BadInput
from damc.files import write_atomically
from damc.learn import Learner, find_method
from damc.learn.presets import Preset
from damc.seeds import global_seed
from damc.train.feed import batches
from damc.train.loop import fit

_PILOT = 24  # iterations that are timed to plan a budget of minutes
_PRODUCTS = 4  # timed after each of them


@dataclass(frozen=True)
class Budget:
    """How long a method may train: `iterations`, or as many as `minutes` have room for."""

    iterations: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.iterations is None) == (self.minutes is None):
            raise BadInput("a budget is either iterations or minutes")


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
) -> tuple[Learner, dict[str, float]]:
    """A method trained on a preset's networks, and what that took.

    The decay of learning rates and the stages of a method are laid out over the iterations that
    the budget has room for, so that every method is judged at the end of its own schedule. With
    minutes, a pilot of a few iterations says how many that are; it is run once, and its answer
    kept in the folder, so that an interrupted cell goes on as planned.

    Minutes are those of one machine in one state for all cells, although a machine may be busier
    in one hour than in another: a pilot counts how many products of matrices an iteration is
    worth, and what a product takes is measured by the first cell alone, for all others.

    Returns:
        The learner, and the iterations and seconds of its training.
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
            products, seconds = _worth(fresh(_PILOT), images, batch, seed)
            seconds = _first(folder.parent / "product.json", seconds)
            iterations = max(_PILOT, int(60 * budget.minutes / (products * seconds)))
            found = {"iterations": iterations, "products_each": products, "seconds": seconds}
            write_atomically(plan, json.dumps(found) + "\n")
    learner = fresh(iterations)
    fit(
        learner,
        images,
        iterations=iterations,
        run=folder / "run",
        batch=batch,
        seed=seed,
        flip=preset.flip,
        preset=preset.name,
        keep=1,
        accelerator="auto",
    )
    return learner.eval(), {"iterations": float(iterations), "seconds": _trained(folder / "run")}


def _worth(learner: Learner, images: Images, batch: int, seed: int) -> tuple[float, float]:
    """How many products of matrices one iteration is worth, and the seconds of a product now.

    Both are timed in turn over a whole schedule of `_PILOT` iterations, so that whatever else the
    machine does slows both.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = found or torch.device("cpu")
    learner.to(device)
    feed = batches(images, batch, seed=seed)
    generator = torch.Generator(device).manual_seed(seed)
    matrix = torch.ones(1024, 1024, device=device)
    iterating, multiplying = 0.0, 0.0
    for k in range(_PILOT):
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
    return _PRODUCTS * iterating / multiplying, multiplying / (_PRODUCTS * (_PILOT - 2))


def _now(device: torch.device) -> float:
    """The time when all that was asked of the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.monotonic()


def _first(path: Path, value: float) -> float:
    """The value that was written to `path` first, by whichever process."""
    mine = path.with_name(f"{path.name}.{os.getpid()}")
    mine.write_text(json.dumps(value))
    try:
        os.link(mine, path)  # all of it or nothing, and never over what is there
    except FileExistsError:
        pass
    finally:
        mine.unlink()
    return float(json.loads(path.read_text()))


def _trained(run: Path) -> float:
    """Seconds of training, added up over interruptions, from the run's metrics."""
    total, last = 0.0, 0.0
    for line in (run / "metrics.jsonl").read_text().splitlines():
        seconds = float(json.loads(line).get("seconds", 0.0))
        total += seconds - last if seconds >= last else seconds
        last = seconds
    return round(total, 1)
