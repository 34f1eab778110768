"""Train one method for one cell: the same networks, data and budget for every method."""

from __future__ import annotations

__all__ = ["Budget", "train"]

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from damc.data import Images, batches
from damc.errors import BadInput
from damc.files import write_atomically
from damc.learn import Learner
from damc.presets import Preset
from damc.train import fit

_PILOT = 24  # iterations that are timed to plan a budget of minutes


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

    Returns:
        The learner, and the iterations and seconds of its training.
    """
    batch = preset.batch if batch is None else batch
    changes = dict(changes or {})

    def fresh(horizon: int) -> Learner:
        torch.manual_seed(seed)
        return preset.learner(method, **{**changes, "horizon": horizon})

    iterations = budget.iterations
    if iterations is None:
        assert budget.minutes is not None
        plan = folder / "budget.json"
        if plan.is_file():
            iterations = int(json.loads(plan.read_text())["iterations"])
        else:
            each = _seconds(fresh(_PILOT), images, batch, seed)
            iterations = max(_PILOT, int(60 * budget.minutes / each))
            text = json.dumps({"iterations": iterations, "seconds_each": each})
            write_atomically(plan, text + "\n")
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


def _seconds(learner: Learner, images: Images, batch: int, seed: int) -> float:
    """Wall-clock of one iteration, averaged over a whole schedule of `_PILOT` iterations."""
    feed = batches(images, batch, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    start = 0.0
    for k in range(_PILOT):
        if k == 2:  # the first ones pay for memory and threads
            start = time.monotonic()
        x, index = next(feed)
        learner.step(x, index, generator)
    return (time.monotonic() - start) / (_PILOT - 2)


def _trained(run: Path) -> float:
    """Seconds of training, added up over interruptions, from the run's metrics."""
    total, last = 0.0, 0.0
    for line in (run / "metrics.jsonl").read_text().splitlines():
        seconds = float(json.loads(line).get("seconds", 0.0))
        total += seconds - last if seconds >= last else seconds
        last = seconds
    return round(total, 1)
