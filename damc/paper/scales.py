"""Effects of the amortizer's capacity, of the chains' length, and of cheaper approximations."""

from __future__ import annotations

__all__ = ["Capacity", "Speedups", "Steps"]

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from damc.errors import BadInput
from damc.learn.presets import Preset, find_preset
from damc.paper.quality import MEASURES, Quality, remark
from damc.paper.table import Cell, Measure, Options, Table
from damc.paper.training import Budget, train

_IMAGES = 2000


class _Scaled(Table):
    """DAMC with several values of one setting, for equal iterations or time."""

    uses: ClassVar[frozenset[str]] = frozenset(
        {"scale", "data", "methods", "minutes", "iterations", "images", "features", "inception"}
    )
    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    method: ClassVar[str] = "damc"
    values: ClassVar[tuple[str, ...]]

    def changed(self, preset: Preset, row: str) -> Preset:
        """The preset with the row's value in it."""
        raise NotImplementedError

    def cells(self, options: Options) -> list[Cell]:
        rows = options.methods or self.values
        for row in rows:
            if row not in self.values:
                raise BadInput(f"methods must be among {', '.join(self.values)}, got {row!r}")
        cells = []
        for name in options.data or (self._data(options.scale),):
            preset = options.preset_of(name)
            given = options.iterations is not None or options.minutes is not None
            plan: dict[str, Any] = {
                "preset": preset.name,
                "method": self.method,
                "iterations": options.iterations if given else preset.iterations,
                "minutes": options.minutes,
                "images": options.images or _IMAGES,
                "features": options.features or "pixel-pca",
            }
            cells += [Cell(row, name, seed, plan) for seed in options.seeds for row in rows]
        return cells

    def _data(self, scale: str) -> str:
        return "cifar10" if scale == "paper" else "mnist-5k"

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        preset = self.changed(find_preset(cell.plan["preset"]), cell.row)
        origin = options.origin_of(preset)
        images, unseen = origin.train(), origin.unseen().images
        budget = Budget(cell.plan["iterations"], cell.plan["minutes"])
        learner, took = train(
            preset, self.method, images, folder, budget, seed=cell.seed, origin=origin
        )
        cache = folder.parent.parent / "statistics"
        quality = Quality.against(images, unseen, options, cache, cell.plan["images"])
        return {**took, **quality.of(learner, cell.seed)}

    def remarks(self, options: Options) -> str:
        return remark(options, options.images or _IMAGES)


class Capacity(_Scaled):
    """The width of the denoiser, in multiples of the preset's."""

    method: ClassVar[str] = "damc-paper"  # whose q(z) is that denoiser on small presets, too
    name: ClassVar[str] = "capacity"
    about: ClassVar[str] = "the amortizer's width from a quarter to four times (appendix)"
    values: ClassVar[tuple[str, ...]] = ("f=1/4", "f=1/2", "f=1", "f=2", "f=4")
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        (row, "cifar10", key): value
        for row, pair in {
            "f=1/4": (116.28, 0.017),
            "f=1/2": (80.28, 0.016),
            "f=1": (57.52, 0.015),
            "f=2": (57.82, 0.015),
            "f=4": (57.56, 0.015),
        }.items()
        for key, value in zip(("frechet", "mse"), pair, strict=True)
    }

    def changed(self, preset: Preset, row: str) -> Preset:
        top, _, bottom = row.removeprefix("f=").partition("/")
        options = preset.networks.amortizer
        capacity = options.get("capacity", 1.0) * int(top) / int(bottom or 1)
        networks = replace(preset.networks, amortizer={**options, "capacity": capacity})
        return replace(preset, networks=networks)


class Steps(_Scaled):
    """The length T of the posterior chains in training, and short chains with momentum."""

    name: ClassVar[str] = "steps"
    about: ClassVar[str] = "posterior chains of 10, 30 and 50 steps, and with momentum (appendix)"
    values: ClassVar[tuple[str, ...]] = ("T=10", "T=30", "T=50", "T=10, underdamped")
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        (row, "cifar10", key): value
        for row, pair in {
            "T=10": (74.20, 0.016),
            "T=30": (57.72, 0.015),
            "T=50": (57.03, 0.015),
        }.items()
        for key, value in zip(("frechet", "mse"), pair, strict=True)
    }

    def changed(self, preset: Preset, row: str) -> Preset:
        steps, _, kernel = row.removeprefix("T=").partition(", ")
        recipe = replace(
            preset.recipe,
            posterior_steps=int(steps),
            warm_posterior_steps=None,
            posterior_kernel=kernel or "langevin",
            damc={k: v for k, v in preset.recipe.damc.items() if k != "posterior_steps"},
        )
        return replace(preset, recipe=recipe)


class Speedups(_Scaled):
    """Algorithm 1 as in the paper, and variants with fewer network evaluations."""

    method: ClassVar[str] = "damc-paper"
    name: ClassVar[str] = "speedups"
    about: ClassVar[str] = "quality with cheaper starts, encoder passes and chains"
    exact: ClassVar[dict[str, Any]] = {
        "start_solver": "ancestral",
        "start_steps": 100,
        "encoder_updates": None,
        "posterior_kernel": "langevin",
        "posterior_steps": 30,
    }
    changes: ClassVar[dict[str, dict[str, Any]]] = {
        "exact": {},
        "10-step starts": {"start_solver": "multistep", "start_steps": 10},
        "encoder in 1 of 6 updates": {"encoder_updates": 1},
        "10 underdamped moves": {"posterior_kernel": "underdamped", "posterior_steps": 10},
    }
    values: ClassVar[tuple[str, ...]] = (*changes, "all three")

    def changed(self, preset: Preset, row: str) -> Preset:
        settings = dict(self.exact)
        for name, change in self.changes.items():
            if row in (name, "all three"):
                settings |= change
        recipe = replace(preset.recipe, **settings, warm_posterior_steps=None)
        return replace(preset, recipe=recipe)
