"""What the page does with a detector: fit one to pictures that were dropped, score others."""

from __future__ import annotations

__all__ = ["Found", "example", "fit_detector", "score"]

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.detect import Detection, detect
from damc.app.jobs import Job
from damc.app.uploads import Picture, read_pictures, stacked
from damc.data import Images, load_images
from damc.data.sources import ArrayStore
from damc.errors import BadInput

if TYPE_CHECKING:
    from damc.anomaly.detector import AnomalyDetector

Progress = Callable[[float, str], None]

LEAST = 10
"""Normal pictures that a detector is fitted to, at least."""

_EXAMPLES = 12  # pictures of the example that are scored


@dataclass(frozen=True)
class Found:
    """Scored pictures.

    Attributes:
        images: as the detector got them, ``(N, C, H, W)`` in [-1, 1].
        maps: where each is anomalous, ``(N, H, W)``.
        detection: names, scores, p-values, and the threshold.
    """

    images: Tensor
    maps: Tensor
    detection: Detection


class _Checked:
    """A store that a stopped job no longer reads from; it counts what was read."""

    def __init__(self, pixels: NDArray[Any], job: Job, progress: Progress | None) -> None:
        self._store, self._job, self._progress = ArrayStore(pixels, -1.0), job, progress
        self.shape, self._read = self._store.shape, 0

    def __len__(self) -> int:
        return len(self._store)

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        self._job.check()
        self._read += len(rows)
        if self._progress is not None:
            # A detector goes over its data a dozen times or so; how often depends on its parts.
            share = 1 - 1 / (1 + self._read / (6 * len(self)))
            self._progress(0.3 + 0.6 * share, "comparing the pictures with each other")
        return self._store.read(rows)

    def content(self, row: int) -> str:
        return self._store.content(row)


def fit_detector(
    paths: Sequence[str | Path],
    job: Job,
    *,
    quantile: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> AnomalyDetector:
    """A detector of pictures that differ from those given.

    Args:
        paths: files of normal pictures; they are cut to squares of one size, at most 64 pixels.
        job: that may stop it.
        quantile: share of normal pictures below the threshold.
        seed: of its splits.
        progress: called with the share done, and what is being done.
    """

    def reading(share: float, what: str) -> None:
        job.check()
        if progress is not None:
            progress(0.3 * share, what)

    if len(paths) < LEAST:
        raise BadInput(f"there must be at least {LEAST} normal pictures, got {len(paths)}")
    pixels = stacked(read_pictures(paths, progress=reading))
    return _fitted(Images(_Checked(pixels, job, progress), name="pictures"), quantile, seed)


def example(
    job: Job, *, quantile: float = 0.95, progress: Progress | None = None
) -> tuple[AnomalyDetector, list[Picture]]:
    """A detector fitted to the sevens of scikit-learn's 8x8 digits, and a few digits to score."""
    if progress is not None:
        progress(0.1, "reading scikit-learn's 8x8 digits")
    normal = load_images("digits", split="train")
    assert normal.labels is not None
    sevens = normal.subset((normal.labels == 7).nonzero()[:, 0])
    pixels = sevens.batch(torch.arange(len(sevens))).numpy()
    store = _Checked(pixels, job, progress)
    detector = _fitted(Images(store, name="sevens"), quantile, 0)
    fresh = load_images("digits", split="test")
    assert fresh.labels is not None
    is_seven = fresh.labels == 7
    chosen = torch.cat([is_seven.nonzero()[:4, 0], (~is_seven).nonzero()[: _EXAMPLES - 4, 0]])
    images = ((fresh.batch(chosen) + 1) * 127.5).round().to(torch.uint8).numpy()
    names = [f"digit {int(fresh.labels[i])}, image {int(i)}" for i in chosen]
    return detector, [Picture(n, x) for n, x in zip(names, images, strict=True)]


def score(
    detector: AnomalyDetector | None, pictures: Sequence[Picture] | Sequence[str | Path]
) -> Found:
    """Scores, p-values and heat maps of pictures.

    Args:
        detector: of this tab.
        pictures: decoded ones, or files, which are cut and resized as the detector needs it.
    """
    if detector is None:
        raise BadInput("a detector must be fitted first: give normal pictures, or the example")
    channels, side, _ = detector.scaling_.shape
    held = [p for p in pictures if isinstance(p, Picture)]
    if len(held) != len(pictures):
        paths = [p for p in pictures if not isinstance(p, Picture)]
        held = read_pictures(paths, side, channels)
    if not held:
        raise BadInput("pictures must be given, got none")
    images = Images(ArrayStore(stacked(held), -1.0), name="pictures")
    found = detect(detector, [images], [picture.name for picture in held])
    maps = torch.from_numpy(detector.explain(images))[:, 0]
    return Found(images.batch(torch.arange(len(images))), maps, found)


def _fitted(images: Images, quantile: float, seed: int) -> AnomalyDetector:
    from damc.anomaly.detector import AnomalyDetector

    with warnings.catch_warnings():
        # That few pictures give a rough threshold is said beside it, as its false alarms.
        warnings.simplefilter("ignore", UserWarning)
        return AnomalyDetector(quantile=quantile, random_state=seed).fit(images)
