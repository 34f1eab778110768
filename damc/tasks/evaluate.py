"""How good a trained model is: distances of its samples to real images, errors on unseen ones."""

from __future__ import annotations

__all__ = [
    "FEATURES",
    "Evaluation",
    "Row",
    "check_features",
    "choose_features",
    "evaluate",
    "evaluate_run",
    "find_features",
]

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import BadInput
from damc.learn.learner import Learner
from damc.metrics.features import Features, inception, inception_file, pixel_pca
from damc.metrics.frechet import Distance, Statistics, cached_statistics, distances, statistics
from damc.report.page import Section
from damc.tasks.decompose import behind, posterior_images
from damc.tasks.generate import stream
from damc.tasks.likelihood import Likelihood
from damc.tasks.likelihood import likelihood as estimate
from damc.tasks.reconstruct import Reconstruction, reconstruct
from damc.tasks.summarize import Recorded, record
from damc.tasks.trained import Trained
from damc.train.origin import Unseen

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
        moves: posterior moves after the amortizer's draw; None for inference of another kind.
        seconds: how long it took.
        likelihood: of unseen images, if it was asked for.
        decomposition: what each source of z adds to the decoder's distance, if it was asked for.
    """

    distances: dict[str, tuple[Distance, Distance]]
    reconstruction: Reconstruction | None
    moves: int | None
    seconds: float
    likelihood: Likelihood | None = None
    decomposition: str = ""

    @property
    def table(self) -> list[Row]:
        """Every number, one a line."""
        rows = [
            Row(of, found.name, found.value, found.error, found.images)
            for of, pair in self.distances.items()
            for found in pair
        ]
        if self.likelihood is not None:
            rows += [Row(*row) for row in self.likelihood.rows]
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
    def results(self) -> dict[str, Any]:
        """The same for ``results.json``, with what each distance was measured on."""
        return {
            "table": [row._asdict() for row in self.table],
            "distances": {of: list(map(asdict, pair)) for of, pair in self.distances.items()},
            "reconstruction": self.reconstruction and self.reconstruction.table,
            "likelihood": self.likelihood and self.likelihood.table,
            "notes": self.notes,
            "seconds": self.seconds,
        }

    @property
    def notes(self) -> list[str]:
        """Caveats about the numbers, each sentence once."""
        found = (distance.note for pair in self.distances.values() for distance in pair)
        notes = [note for note in dict.fromkeys([self.decomposition, *found]) if note]
        return notes if self.likelihood is None else [*notes, self.likelihood.note]

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
            f"{first.features} features; lower is better. A perfect model would get the distance "
            "of the unseen images."
        )
        return Section("Evaluation", "\n\n".join([text, *self.notes]), settings=shown)


def check_features(name: str, path: str | Path | None = None) -> None:
    """Raises `BadInput` for features that do not exist, or whose file cannot be used."""
    if name not in FEATURES:
        raise BadInput(f"features must be one of {', '.join(FEATURES)}, got {name!r}")
    if name == "inception":
        inception_file(path)
    elif path is not None:
        raise BadInput(f"features must be inception where its file is given, got {name}")


def find_features(name: str, path: str | Path | None = None) -> tuple[str, str]:
    """Features by name, "auto" made into one of them, and a note where it could not be Inception.

    Args:
        name: one of `FEATURES`, or "auto": Inception if its file is there, else pixel-pca.
        path: the Inception file; where one is given, "auto" is Inception.
    """
    if name == "auto" and path is None:
        try:
            inception_file()
        except BadInput as error:
            where = str(error).partition(";")[0]
            return "pixel-pca", (
                f"{where}, so distances are measured on principal components of pixels, which come "
                "with damc; they are no FID"
            )
    name = "inception" if name == "auto" else name
    check_features(name, path)
    return name, ""


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
    likelihood: int = 0,
    decompose: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Compares samples from every source with training images, and reconstructs unseen ones.

    The distance of the unseen images themselves is measured too: with few images it is far from 0,
    and no model can be expected to do better.

    Args:
        learner: a trained learner.
        train: the images it learned from, unflipped and in order.
        unseen: images it did not learn from.
        features: what distances are measured on, as `choose_features` gives them.
        cache: folder where the statistics of real images are kept, by their content.
        n: how many images are drawn from each source.
        real: how many training images samples are compared with, the first.
        limit: how many unseen images are reconstructed, the first; all by default.
        floor: also measure the distance of unseen images, the least that can be expected.
        likelihood: estimate log Z of the prior and log p(x) of so many unseen images, the first.
        decompose: also measure decoded posterior samples and Gaussians fitted to them, which shows
            which part is behind.
        seed: of all draws.
        progress: show progress bars.
    """
    if n < 3 or real < 3:
        raise BadInput(f"n and real must be at least 3, got {n} and {real}")
    start = time.monotonic()
    nats = None
    if likelihood:
        first = unseen.batch(torch.arange(min(likelihood, len(unseen))))
        nats = estimate(learner, first, seed=seed, progress=progress)
    shown = _First(train, real, "training images", progress)
    goal = cached_statistics(shown, features, cache, batch_size=_BATCH)
    split = f"train, the first {goal.images:,} images"

    def compare(of: Statistics) -> tuple[Distance, Distance]:
        return distances(of, goal, split=split)

    found = {}
    for source in learner.sources:
        name = _name(learner, source)
        drawn = (part.clamp(-1, 1) for part in stream(learner, n, source=source, seed=seed))
        watched = _watched(drawn, n, name, progress)
        found[name] = compare(statistics(watched, features, batch_size=_BATCH))
    decomposition = ""
    if decompose:
        kernels = {name: pair[1].value for name, pair in found.items()}
        for name, images in posterior_images(learner, train, n, after=goal.images, seed=seed):
            watched = _watched([images.clamp(-1, 1)], len(images), name, progress)
            found[name] = compare(statistics(watched, features, batch_size=_BATCH))
            kernels[name] = found[name][1].value
        decomposition = behind(kernels, {s: _name(learner, s) for s in learner.sources})
    if floor:
        held = _First(unseen, n, "unseen images", progress)
        least = cached_statistics(held, features, cache, batch_size=_BATCH)
        found["unseen images"] = compare(least)
    errors = None
    if learner.inference is not None:
        errors = reconstruct(learner, unseen, limit=limit, seed=seed, progress=progress)
    seconds = round(time.monotonic() - start, 2)
    return Evaluation(found, errors, _moves(learner), seconds, nats, decomposition)


def evaluate_run(
    trained: Trained,
    *,
    features: str = "auto",
    inception: str | Path | None = None,
    unseen: str | Path | None = None,
    cache: str | Path | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[Evaluation, Recorded]:
    """Evaluates a run on its own data; writes ``evaluate/results.json`` and the report.

    Args:
        trained: the run.
        features: one of `FEATURES`, or "auto" as `find_features` takes it.
        inception: the Inception file, if it is not in its usual place.
        unseen: images that the run has not seen, instead of the test images of its data.
        cache: where statistics of real images are kept; ~/.cache/damc/statistics by default.
        seed: of all draws.
        **options: further arguments of `evaluate`.
    """
    if trained.origin is None or trained.unseen is None:
        raise BadInput(
            f"{trained.run.path} must be a run of the command line, got one that was trained from "
            "Python: call damc.tasks.evaluate.evaluate"
        )
    held = trained.unseen
    if unseen is not None:
        held = Unseen(trained.origin.load((Path(unseen),))[0], "the images given", "")
    if held.note:
        raise BadInput(f"{held.note.rstrip('.')}: give unseen images with --unseen IMAGES")
    learner, train = trained.learner, trained.origin.train()
    found = evaluate(
        learner,
        train,
        held.images,
        choose_features(
            find_features(features, inception)[0], train, path=inception, device=learner.device
        ),
        cache=cache or Path.home() / ".cache" / "damc" / "statistics",
        seed=seed,
        **options,
    )
    results = {"data": train.name, "evaluated_on": held.kind, "seed": seed, **found.results}
    return found, record(trained, "evaluate", results, found.section, held)


class _First:
    """The first images of a set in small batches; can be iterated over again."""

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
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=what, disable=not progress, dynamic_ncols=True) as bar:
        for part in parts:
            for piece in torch.split(part, _BATCH):
                yield piece
                bar.update(len(piece))


def _name(learner: Learner, source: str) -> str:
    """A source in the words of the paper's tables."""
    if len(learner.sources) == 1:
        return learner.name
    if source == "energy":
        return f"{learner.name}, {learner.settings.prior_sample_steps} Langevin steps"
    return f"{learner.name}, {'N(0, I)' if source == 'gaussian' else source}"


def _moves(learner: Learner) -> int | None:
    """Posterior moves of inference that starts at an amortizer's draw."""
    amortized = learner.inference == "chain" and "amortizer" in learner.sources
    return int(learner.settings.test_steps) if amortized else None
