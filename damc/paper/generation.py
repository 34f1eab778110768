"""Generation and reconstruction: the paper's main table, its ablation, and other latent spaces."""

from __future__ import annotations

__all__ = ["Ablation", "Generation", "LatentSpaces", "TrainedTable"]

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from damc.learn import find_method
from damc.learn.learner import Learner
from damc.learn.presets import find_preset
from damc.paper.quality import LIKELIHOODS, MEASURES, Quality, remark
from damc.paper.table import Cell, Measure, Options, Table
from damc.paper.training import Budget, train

_MINUTES = 8.0
_IMAGES = 2000


class TrainedTable(Table):
    """Methods trained on the networks of a preset for each data set, then measured.

    A subclass names its methods and data, and may override `figures`.
    """

    uses: ClassVar[frozenset[str]] = frozenset(
        {"scale", "methods", "data", "minutes", "iterations", "images", "features", "inception"}
    )
    measures: ClassVar[tuple[Measure, ...]] = MEASURES
    methods: ClassVar[tuple[str, ...]]
    data: ClassVar[tuple[str, ...]]

    def cells(self, options: Options) -> list[Cell]:
        methods, data = options.methods or self.methods, options.data or self.data
        for method in methods:
            find_method(method)
        cells = []
        for seed in options.seeds:
            for name in data:
                preset = options.preset_of(name)
                plan = {
                    "preset": preset.name,
                    "images": options.images or _IMAGES,
                    "features": options.features or "pixel-pca",
                    **self.budget(options, preset.iterations),
                }
                cells += [Cell(method, name, seed, plan) for method in methods]
        return cells

    def budget(self, options: Options, iterations: int) -> dict[str, Any]:
        """The options' budget; by default minutes at small scale, else the preset's iterations."""
        if options.minutes is not None or options.iterations is not None:
            return {"minutes": options.minutes, "iterations": options.iterations}
        if options.scale == "paper":
            return {"minutes": None, "iterations": iterations}
        return {"minutes": _MINUTES, "iterations": None}

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        preset = find_preset(cell.plan["preset"])
        origin = options.origin_of(preset)
        images, unseen = origin.train(), origin.unseen().images
        budget = Budget(cell.plan["iterations"], cell.plan["minutes"])
        learner, took = train(
            preset, cell.row, images, folder, budget, seed=cell.seed, origin=origin
        )
        cache = folder.parent.parent / "statistics"
        quality = Quality.against(images, unseen, options, cache, cell.plan["images"])
        return {**took, **self.figures(learner, quality, cell)}

    def figures(self, learner: Learner, quality: Quality, cell: Cell) -> dict[str, float]:
        """The figures of a trained learner."""
        return quality.of(learner, cell.seed)

    def remarks(self, options: Options) -> str:
        shared = "Every method has the same networks, data and"
        budget = self.budget(options, 0)
        time = (
            f"{budget['minutes']:g} minute{'' if budget['minutes'] == 1 else 's'} of training."
            if budget["minutes"] is not None
            else f"{budget['iterations'] or 'its preset'} iterations."
        )
        return f"{shared} {time} {remark(options, options.images or _IMAGES)}"


class Generation(TrainedTable):
    """The paper's main table."""

    name: ClassVar[str] = "generation"
    about: ClassVar[str] = "samples and reconstructions of every method (the paper's table 1)"
    uses: ClassVar[frozenset[str]] = TrainedTable.uses | {"likelihood"}
    measures: ClassVar[tuple[Measure, ...]] = (*MEASURES, *LIKELIHOODS)
    methods: ClassVar[tuple[str, ...]] = (
        "vae",
        "vae-2stage",
        "rae",
        "ncp-vae",
        "adaptive-ce",
        "abp",
        "sri",
        "sri-l5",
        "lebm",
        "damc-vae",
        "damc-paper",
        "damc",
    )
    data: ClassVar[tuple[str, ...]] = ("svhn", "mnist", "cifar10")
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        (method, name, key): value
        for method, row in {
            "vae": {"svhn": (0.019, 46.78), "celeba64": (0.021, 65.75), "cifar10": (0.057, 106.37)},
            "vae-2stage": {
                "svhn": (0.019, 42.81),
                "celeba64": (0.021, 44.40),
                "cifar10": (0.056, 72.90),
            },
            "rae": {"svhn": (0.014, 40.02), "celeba64": (0.018, 40.95), "cifar10": (0.027, 74.16)},
            "ncp-vae": {
                "svhn": (0.020, 33.23),
                "celeba64": (0.021, 42.07),
                "cifar10": (0.054, 78.06),
            },
            "adaptive-ce": {
                "svhn": (0.004, 26.19),
                "celeba64": (0.009, 35.38),
                "cifar10": (0.008, 65.01),
            },
            "sri": {"svhn": (0.018, 44.86), "celeba64": (0.020, 61.03)},
            "sri-l5": {"svhn": (0.011, 35.32), "celeba64": (0.015, 47.95)},
            "lebm": {
                "svhn": (0.008, 29.44),
                "celeba64": (0.013, 37.87),
                "cifar10": (0.020, 70.15),
                "celebahq256": (0.025, 133.07),
            },
            "damc": {
                "svhn": (0.002, 18.76),
                "celeba64": (0.005, 30.83),
                "cifar10": (0.015, 57.72),
                "celebahq256": (0.023, 85.88),
            },
        }.items()
        for name, pair in row.items()
        for key, value in zip(("mse", "frechet"), pair, strict=True)
    } | {
        ("abp", "cifar10", "mse"): 0.018,
        ("abp", "svhn", "frechet"): 49.71,
        ("abp", "celeba64", "frechet"): 51.50,
        ("abp", "cifar10", "frechet"): 90.30,
        ("damc", "svhn", "frechet_energy"): 21.17,
        ("damc", "celeba64", "frechet_energy"): 35.67,
        ("damc", "cifar10", "frechet_energy"): 60.89,
        ("damc", "celebahq256", "frechet_energy"): 89.54,
    }

    def cells(self, options: Options) -> list[Cell]:
        cells = super().cells(options)
        if options.likelihood:
            cells = [replace(cell, plan={**cell.plan, "likelihood": True}) for cell in cells]
        return cells

    def figures(self, learner: Learner, quality: Quality, cell: Cell) -> dict[str, float]:
        figures = super().figures(learner, quality, cell)
        if cell.plan.get("likelihood"):
            figures |= quality.likelihood(learner, cell.seed)
        return figures


class Ablation(TrainedTable):
    """The paper's ablation: each model sampled without (V) and with (D) an amortizer."""

    name: ClassVar[str] = "ablation"
    about: ClassVar[str] = "variational, short-run, no energy, distilled at the end, DAMC (table 4)"
    methods: ClassVar[tuple[str, ...]] = ("vi-lebm", "lebm", "damc-g", "nalr", "damc")
    data: ClassVar[tuple[str, ...]] = ("cifar10",)
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("kernel_v", "V: kernel distance"),
        Measure("frechet_v", "V: Frechet distance"),
        Measure("mse_v", "V: test MSE"),
        Measure("kernel_d", "D: kernel distance"),
        Measure("frechet_d", "D: Frechet distance"),
        Measure("mse_d", "D: test MSE"),
        Measure("iterations", "iterations", lower=False),
    )
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        (method, "cifar10", key): value
        for method, row in {
            "vi-lebm": {"mse_v": 0.054, "frechet_v": 78.06},
            "lebm": {"mse_v": 0.020, "frechet_v": 70.15},
            "damc-g": {"mse_v": 0.018, "frechet_v": 90.30, "mse_d": 0.015, "frechet_d": 66.93},
            "nalr": {"mse_v": 0.028, "frechet_v": 68.52, "mse_d": 0.016, "frechet_d": 64.38},
            "damc": {"mse_v": 0.021, "frechet_v": 60.89, "mse_d": 0.015, "frechet_d": 57.72},
        }.items()
        for key, value in row.items()
    }

    def figures(self, learner: Learner, quality: Quality, cell: Cell) -> dict[str, float]:
        seed = cell.seed
        amortized = "amortizer" in learner.sources
        vanilla = "energy" if "energy" in learner.sources else "gaussian"
        figures = {}
        figures["frechet_v"], figures["kernel_v"] = quality.distance(learner, vanilla, seed)
        noise_start = {"source": "gaussian"} if amortized else {}
        figures["mse_v"] = quality.error(learner, seed, **noise_start)
        if amortized:
            found = quality.distance(learner, "amortizer", seed)
            figures["frechet_d"], figures["kernel_d"] = found
            figures["mse_d"] = quality.error(learner, seed)
        return figures


class LatentSpaces(TrainedTable):
    """The appendix: a diffusion model in the latent space of other models."""

    name: ClassVar[str] = "latent-spaces"
    about: ClassVar[str] = "a diffusion model in a VAE's, an ABP's and a LEBM's latent space"
    methods: ClassVar[tuple[str, ...]] = ("damc-vae", "damc-abp", "nalr", "damc")
    data: ClassVar[tuple[str, ...]] = ("cifar10",)
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        ("damc-vae", "cifar10", "frechet"): 102.54,
        ("damc-vae", "cifar10", "mse"): 0.036,
        ("damc-abp", "cifar10", "frechet"): 69.93,
        ("damc-abp", "cifar10", "mse"): 0.017,
        ("nalr", "cifar10", "frechet"): 64.38,
        ("nalr", "cifar10", "mse"): 0.016,
        ("damc", "cifar10", "frechet"): 57.52,
        ("damc", "cifar10", "mse"): 0.015,
    }
