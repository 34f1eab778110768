"""The race: how good each method's samples are after 1, 2, 4, 8, ... minutes of one run."""

from __future__ import annotations

__all__ = ["Race", "moments"]

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from damc.disk import write_atomically
from damc.errors import BadInput
from damc.learn.learner import Learner
from damc.learn.presets import find_preset
from damc.paper.generation import TrainedTable
from damc.paper.quality import Quality
from damc.paper.table import Cell, Measure, Options, Result
from damc.paper.training import Budget, train
from damc.report import plots

_KEY = "kernel@{:g}"
_MOST = 64  # minutes of the longest race


def moments(minutes: float) -> tuple[float, ...]:
    """1, 2, 4, ... minutes below the last, and the last.

    Example:
        >>> moments(6.0)
        (1.0, 2.0, 4.0, 6.0)
    """
    if minutes > _MOST:
        raise BadInput(f"minutes of a race must be at most {_MOST}, got {minutes:g}")
    doubled = (2.0**k for k in range(7))
    return (*(m for m in doubled if m < minutes), float(minutes))


class Race(TrainedTable):
    """Quality along one run of each method, measured at doubling times.

    Moments are shares of the iterations, so that those of a method whose first iterations are its
    cheapest come sooner than their minutes. The learning rates fall over the whole run, so that
    only the last moment is a finished model.
    """

    name: ClassVar[str] = "race"
    about: ClassVar[str] = "quality of samples at 1, 2, 4, 8, ... minutes of each method's run"
    uses: ClassVar[frozenset[str]] = TrainedTable.uses - {"iterations", "scale"}
    methods: ClassVar[tuple[str, ...]] = (
        "vae",
        "vae-2stage",
        "rae",
        "ncp-vae",
        "lebm",
        "damc-paper",
        "damc",
    )
    data: ClassVar[tuple[str, ...]] = ("mnist",)
    measures: ClassVar[tuple[Measure, ...]] = (
        *(
            Measure(f"{key}@{2.0**k:g}", f"{title}, {2**k} min")
            for key, title in (("kernel", "kernel distance"), ("mse", "test MSE"))
            for k in range(7)
        ),
        Measure("kernel", "kernel distance, last"),
        Measure("kernel_energy", "by the energy, last"),
        Measure("mse", "test MSE, last"),
        Measure("iterations", "iterations", lower=False),
        Measure("cpu_seconds", "CPU seconds"),
    )

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        preset = find_preset(cell.plan["preset"])
        origin = options.origin_of(preset)
        images, unseen = origin.train(), origin.unseen().images
        cache = folder.parent.parent / "statistics"
        quality = Quality.against(images, unseen, options, cache, cell.plan["images"])
        path = folder / "moments.json"  # what was measured before an interruption
        found: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
        minutes = cell.plan["minutes"]

        def look(learner: Learner, share: float) -> None:
            at = share * minutes
            if _KEY.format(at) not in found:
                figures = quality.of(learner, cell.seed)
                found.update({f"{key}@{at:g}": value for key, value in figures.items()})
                if share == 1.0:
                    found.update(figures)
                write_atomically(path, json.dumps(found) + "\n")

        budget = Budget(minutes=minutes)
        shares = tuple(m / minutes for m in moments(minutes))
        took = train(
            preset,
            cell.row,
            images,
            folder,
            budget,
            seed=cell.seed,
            look=look,
            shares=shares,
            origin=origin,
        )[1]
        return {**took, **found}

    def chart(self, results: Sequence[Result], path: Path) -> Path | None:
        panels: dict[str, dict[str, dict[float, list[float]]]] = {}
        for result in results:
            line = panels.setdefault(result.cell.column, {}).setdefault(result.cell.row, {})
            for at, value in _along(result.figures).items():
                line.setdefault(at, []).append(value)
        return plots.lines(panels, path, "minutes of training", "kernel distance")


def _along(figures: Mapping[str, float]) -> dict[float, float]:
    """The kernel distances of the first source, by minutes; those that a logarithm can show."""
    split = ((key.partition("@"), value) for key, value in figures.items())
    return {
        float(at): value for (key, _, at), value in split if key == "kernel" and at and value > 0
    }
