"""How good a trained model is: distances of its samples to real images, errors on unseen ones."""

from __future__ import annotations

__all__ = ["FEATURES", "check_features", "Evaluation", "Row", "choose_features", "evaluate"]

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import BadInput, Unable
from damc.learn import DAMC, Learner
from damc.metrics.features import Features, inception, inception_file, pixel_pca
from damc.metrics.frechet import Distance, Statistics, cached_statistics, distances, statistics
from damc.report.page import Section
from damc.tasks.generate import SOURCES, sources, stream
from damc.tasks.reconstruct import Reconstruction, reconstruct

FEATURES = ("inception", "pixel-pca")
"""The features a distance can be measured on, by name."""

_FITTED = 5_000  # images that pixel-PCA features are fitted on
_BATCH = 20  # images that go through a feature network at once


class Row(NamedTuple):
    """One line of the table."""

    of: str
    measure: str
    value: float
    error: float | None
    images: int


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        distances: Frechet and kernel distance to the training images, by what was compared.
        reconstruction: of unseen images; None for a method without inference.
        moves: posterior moves after the amortizer's draw; None where the learner has no such.
        seconds: how long it took.
    """

    distances: dict[str, tuple[Distance, Distance]]
    reconstruction: Reconstruction | None
    moves: int | None
    seconds: float

    @property
    def table(self) -> list[Row]:
        """Every number, one a line."""
        rows = [
            Row(of, found.name, found.value, found.error, found.images)
            for of, pair in self.distances.items()
            for found in pair
        ]
        if self.reconstruction is None:
            return rows
        numbers = self.reconstruction.table
        n = numbers["images"]
        of = "reconstruction" if self.moves is None else f"reconstruction, {self.moves} steps"
        error = numbers["mse_standard_error"]
        rows.append(Row(of, "MSE per pixel", numbers["mse"], error, n))
        rows.append(Row(of, "PSNR, dB", numbers["psnr"], None, n))
        rows.append(Row("mean image", "MSE per pixel", numbers["mean_image_mse"], None, n))
        return rows

    @property
    def notes(self) -> list[str]:
        """What to keep in mind about the numbers, each sentence once."""
        found = (distance.note for pair in self.distances.values() for distance in pair)
        return [note for note in dict.fromkeys(found) if note]

    @property
    def section(self) -> Section:
        """The table as a part of the run's report."""
        shown = {
            f"{row.of}: {row.measure}": f"{row.value:.4g}"
            + ("" if row.error is None else f" +- {row.error:.2g}")
            + f" ({row.images:,} images)"
            for row in self.table
        }
        first = next(iter(self.distances.values()))[0]
        text = (
            f"Distances of generated images to {first.real_images:,} training images on "
            f"{first.features} features; lower is better. The line of unseen images says what a "
            "perfect model would get with as many images."
        )
        return Section("Evaluation", "\n\n".join([text, *self.notes]), settings=shown)


def check_features(name: str, path: str | Path | None = None) -> None:
    """Refuses features that do not exist, or whose file is missing or of no use."""
    if name not in FEATURES:
        raise BadInput(f"features are one of {', '.join(FEATURES)}, got {name!r}")
    if name == "inception":
        inception_file(path)
    elif path is not None:
        raise BadInput("pixel-pca features need no file, but one for inception was given")


def choose_features(
    name: str,
    train: Images,
    *,
    path: str | Path | None = None,
    device: torch.device | None = None,
) -> Features:
    """Features by name: "inception", or "pixel-pca" fitted on the training images.

    Args:
        name: one of `FEATURES`.
        train: the training images.
        path: the Inception file, if it is not where `damc.metrics.inception` looks.
        device: where a network runs.
    """
    check_features(name, path)
    if name == "inception":
        return inception(path, device=device)
    x = train.batch(torch.arange(min(_FITTED, len(train))))
    # A quarter of the pixels: borders that never change carry no component.
    return pixel_pca(x, max(1, min(64, x[0].numel() // 4, len(x) - 1)))


def evaluate(
    learner: Learner,
    train: Images,
    unseen: Images,
    features: Features,
    *,
    cache: str | Path,
    n: int = 2000,
    real: int = 10_000,
    limit: int | None = None,
    floor: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Compares samples by every way of drawing with training images, and reconstructs unseen ones.

    The distance of unseen images themselves stands beside those of the samples: with few images
    it is far from 0, and no model can be expected to do better.

    Args:
        learner: a trained learner.
        train: the images it learned from, unflipped and in order.
        unseen: images it did not learn from.
        features: what distances are measured on, as `choose_features` gives them.
        cache: folder where the statistics of real images are kept, by their content.
        n: how many images are drawn in each way.
        real: at most so many training images are compared with, the first ones.
        limit: reconstruct only the first so many unseen images.
        floor: also measure the distance of unseen images, the least that can be expected.
        seed: of all draws.
        progress: show progress bars.
    """
    if n < 3 or real < 3:
        raise BadInput(f"n is {n} and real {real}: distances want at least 3 images of each")
    start = time.monotonic()
    shown = _Shelf(train, real, "training images", progress)
    goal = cached_statistics(shown, features, cache, batch_size=_BATCH)
    split = f"train, the first {goal.images:,} images"

    def compare(of: Statistics) -> tuple[Distance, Distance]:
        return distances(of, goal, split=split)

    found = {}
    for source in sources(learner):
        name = _name(learner, source)
        drawn = (part.clamp(-1, 1) for part in stream(learner, n, source=source, seed=seed))
        watched = _watched(drawn, n, name, progress)
        found[name] = compare(statistics(watched, features, batch_size=_BATCH))
    if floor:
        held = _Shelf(unseen, n, "unseen images", progress)
        least = cached_statistics(held, features, cache, batch_size=_BATCH)
        found["unseen images"] = compare(least)
    images = None
    with contextlib.suppress(Unable):
        images = reconstruct(learner, unseen, limit=limit, seed=seed, progress=progress)
    moves = getattr(learner.settings, "test_steps", None)
    return Evaluation(found, images, moves, round(time.monotonic() - start, 2))


class _Shelf:
    """The first images of a set in small batches, as often as they are asked for."""

    def __init__(self, images: Images, limit: int, what: str, progress: bool) -> None:
        self.images, self.count = images, min(limit, len(images))
        self.what, self.progress = what, progress

    def __iter__(self) -> Iterator[Tensor]:
        starts = range(0, self.count, _BATCH)
        parts = (
            self.images.batch(torch.arange(i, min(i + _BATCH, self.count))).clamp(-1, 1)
            for i in starts
        )
        return _watched(parts, self.count, self.what, self.progress)


def _watched(parts: Iterable[Tensor], total: int, what: str, progress: bool) -> Iterator[Tensor]:
    """Batches cut small, with a bar that counts images."""
    from tqdm import tqdm

    with tqdm(total=total, desc=what, disable=not progress, dynamic_ncols=True) as bar:
        for part in parts:
            for piece in torch.split(part, _BATCH):
                yield piece
                bar.update(len(piece))


def _name(learner: Learner, source: str) -> str:
    """A way of drawing as the paper's tables call it."""
    if not isinstance(learner, DAMC):
        several = len(sources(learner)) > 1
        return f"{learner.name}, {SOURCES.get(source, source)}" if several else learner.name
    steps = learner.settings.prior_sample_steps
    names = {
        "amortizer": "DAMC, amortizer",
        "energy": f"LEBM, {steps} Langevin steps",
        "gaussian": "N(0, I) decoded",
    }
    return names[source]
