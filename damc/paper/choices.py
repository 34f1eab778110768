"""Choices in which the paper and its code differ: an ablation of each.

The base is the smallest preset; every row changes one choice of it. docs/conventions.md lists the
choices and the defaults.
"""

from __future__ import annotations

__all__ = ["Choices", "Variant"]

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from damc.data import Images, load_images
from damc.errors import BadInput
from damc.learn.damc import DAMC
from damc.learn.presets import find_preset
from damc.metrics.features import pixel_pca
from damc.metrics.frechet import distances, statistics
from damc.paper.table import Cell, Measure, Options, Table
from damc.paper.training import Budget, train
from damc.tasks.generate import stream


@dataclass(frozen=True)
class Variant:
    """One changed choice: settings of the learner, or options of its amortizer."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    amortizer: Mapping[str, Any] = field(default_factory=dict)


VARIANTS: dict[str, Variant] = {
    "damc's defaults": Variant(),
    "prior step 0.1": Variant({"prior_step_size": 0.1}),
    "prior step 0.2": Variant({"prior_step_size": 0.2}),
    "prior starts at q(z)": Variant({"prior_starts": "unconditional"}),
    "no negatives from noise": Variant({"noise_negatives": False}),
    "null condition from noise": Variant(amortizer={"null": "noise"}),
    "two losses, with and without x": Variant({"unconditional": "both"}),
    "eps itself, not eps - z": Variant(amortizer={"residual": False}),
    "gamma 0": Variant(amortizer={"gamma": 0.0}),
    "weight decay 0": Variant({"amortizer_weight_decay": 0.0}),
    "weight decay 0.01": Variant({"amortizer_weight_decay": 1e-2}),
    "EMA 0.005 every 10": Variant({"ema_rate": 0.005, "ema_every": 10}),
    "no energy penalty": Variant({"energy_penalty": 0.0}),
    "starts by 100 ancestral steps": Variant({"start_solver": "ancestral", "start_steps": 100}),
}
"""Every row: damc's defaults, and one choice changed at a time."""

_PRESET = "digits-small"
_DRAWN = 1000


class Choices(Table):
    """Each choice in which the paper and its code differ, changed alone."""

    name: ClassVar[str] = "choices"
    about: ClassVar[str] = "each choice in which the paper and its code differ, changed alone"
    uses: ClassVar[frozenset[str]] = frozenset({"methods", "iterations", "minutes"})
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("distance_amortizer", "amortizer's samples, Frechet distance"),
        Measure("distance_energy", "energy's samples, Frechet distance"),
        Measure("mse", "test MSE, 10 noiseless steps"),
        Measure("mse_noise", "with noise"),
        Measure("mse_start", "no steps"),
        Measure("energy_gap", "energy of data minus samples"),
        Measure("seconds", "seconds"),
    )
    note: ClassVar[str] = (
        "Distances are between 1,000 samples and the training digits on 16 principal components of "
        "the pixels: a small feature space, which is not FID."
    )

    def cells(self, options: Options) -> list[Cell]:
        rows = options.methods or tuple(VARIANTS)
        for row in rows:
            if row not in VARIANTS:
                raise BadInput(f"methods must be among {', '.join(VARIANTS)}, got {row!r}")
        iterations = options.iterations
        if iterations is None and options.minutes is None:
            iterations = 400
        plan = {"preset": _PRESET, "iterations": iterations, "minutes": options.minutes}
        return [Cell(row, "digits", seed, plan) for seed in options.seeds for row in rows]

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        variant = VARIANTS[cell.row]
        preset = find_preset(_PRESET)
        networks = replace(
            preset.networks, amortizer={**preset.networks.amortizer, **variant.amortizer}
        )
        preset = replace(preset, networks=networks)
        images, unseen = load_images("digits"), load_images("digits", split="test")
        learner, took = train(
            preset,
            "damc-paper",  # whose choices these are
            images,
            folder,
            Budget(cell.plan["iterations"], cell.plan["minutes"]),
            seed=cell.seed,
            changes=dict(variant.settings),
        )
        return {**took, **figures_of(cast(DAMC, learner), images, unseen)}


def figures_of(learner: DAMC, images: Images, unseen: Images) -> dict[str, float]:
    """Distances of samples to training images, and errors on unseen images."""
    x = images.batch(torch.arange(len(images)))
    features = pixel_pca(x, 16)
    real = statistics([x], features)
    figures = {}
    for source in ("amortizer", "energy"):
        drawn = statistics(stream(learner, _DRAWN, source=source), features)
        figures[f"distance_{source}"] = distances(drawn, real, split="train")[0].value
    test = unseen.batch(torch.arange(len(unseen))).to(learner.device)
    ways: dict[str, dict[str, Any]] = {
        "mse": {},
        "mse_noise": {"noise": True},
        "mse_start": {"steps": 0},
    }
    for key, options in ways.items():
        figures[key] = _error(learner, test, options)
    generator = torch.Generator(learner.device).manual_seed(0)
    z = torch.cat([learner.infer(p, noise=True, generator=generator) for p in _parts(test)])
    energy = learner.model.prior.energy
    assert energy is not None
    with torch.no_grad():
        drawn_z = learner.sample_latent(_DRAWN, "energy", generator=generator)
        figures["energy_gap"] = float(energy(z).mean() - energy(drawn_z).mean())
    return figures


@torch.no_grad()
def _error(learner: DAMC, x: Tensor, options: dict[str, Any]) -> float:
    generator = torch.Generator(learner.device).manual_seed(0)
    errors = []
    for part in _parts(x):
        image = learner.model.decoder(learner.infer(part, generator=generator, **options))
        errors.append((image - part).square().flatten(1).mean(1))
    return float(torch.cat(errors).mean())


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    return torch.split(x, 500)
