"""Find the anomalies among images: a table with one line each, pictures of both ends, heat maps."""

from __future__ import annotations

__all__ = ["Detection", "detect", "draw_ends", "draw_maps", "names_of"]

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.threshold import Threshold
from damc.data import Images
from damc.data.pictures import PICTURE_SUFFIXES, list_pictures
from damc.data.sources import ArrayStore
from damc.errors import BadInput
from damc.files import write_atomically
from damc.report import plots

if TYPE_CHECKING:
    from damc.anomaly.detector import AnomalyDetector


@dataclass(frozen=True)
class Detection:
    """Scores of images, and which of them are anomalies.

    Attributes:
        names: of the images, N of them.
        scores: higher is more anomalous, (N,).
        probabilities: of being anomalous, as `AnomalyDetector.predict_proba` makes them, (N,).
        p_values: how often normal images score as high, (N,).
        threshold: scores above it are anomalies.
    """

    names: list[str]
    scores: NDArray[Any]
    probabilities: NDArray[Any]
    p_values: NDArray[Any]
    threshold: float

    @property
    def anomalous(self) -> NDArray[np.bool_]:
        """Which scores exceed the threshold, (N,)."""
        return self.scores > self.threshold

    @property
    def order(self) -> list[int]:
        """The images' numbers, the most anomalous first."""
        return [int(i) for i in np.argsort(-self.scores, kind="stable")]

    def write_csv(self, path: str | Path) -> Path:
        """One line for each image, in the order given: name, score, probability, p-value,
        anomalous."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "score", "probability", "p_value", "anomalous"])
        columns = (self.names, self.scores, self.probabilities, self.p_values, self.anomalous)
        for name, score, probability, p, anomalous in zip(*columns, strict=True):
            row = [name, f"{score:.6g}", f"{probability:.4f}", f"{p:.4g}", int(anomalous)]
            writer.writerow(row)
        return write_atomically(path, text.getvalue())


def detect(detector: AnomalyDetector, sets: Sequence[Images], names: Sequence[str]) -> Detection:
    """Scores every image.

    Args:
        detector: a fitted detector.
        sets: images, one or more sets of one shape.
        names: of all the images, in order.
    """
    scores = np.concatenate([detector.decision_function(images) for images in sets])
    if len(names) != len(scores):
        raise BadInput(f"there are {len(scores)} images and {len(names)} names")
    probabilities = detector.probabilities(scores)[:, 1]
    p_values = Threshold(detector.normal_scores_, detector.quantile).p_values(scores)
    return Detection(list(names), scores, probabilities, p_values, detector.threshold_)


def draw_ends(
    detector: AnomalyDetector,
    sets: Sequence[Images],
    found: Detection,
    path: str | Path,
    show: int = 8,
) -> Path:
    """Draws the most and the least anomalous images, their reconstructions, if any, under them.

    Args:
        detector: a fitted detector.
        sets: the images that `found` scores.
        found: their scores.
        path: the PNG to write.
        show: how many of each end, at most half of all.
    """
    if show < 1:
        raise BadInput(f"n is {show}: at least 1 image is wanted")
    order = found.order
    count = min(show, max(1, len(order) // 2))
    chosen = order[:count] + (order[-count:][::-1] if len(order) > 1 else [])
    x = _chosen(sets, chosen)
    if detector.learner_ is None or detector.learner_.inference is None:
        ends = ["most"] * count + ["least"] * (len(chosen) - count)
        return plots.image_grid(x, path, columns=count, labels=ends)
    y = detector.reconstruct(_images(x))
    names = ("most anomalous", "model", "least anomalous", "model")
    return plots.paired_grid(x, y.clamp(-1, 1), path, columns=count, names=names)


def draw_maps(
    detector: AnomalyDetector,
    sets: Sequence[Images],
    found: Detection,
    path: str | Path,
    show: int = 8,
) -> Path:
    """Draws the most anomalous images, and under each where it is anomalous, from blue to red.

    Args:
        detector: a fitted detector.
        sets: the images that `found` scores.
        found: their scores.
        path: the PNG to write.
        show: how many.
    """
    from matplotlib import colormaps

    chosen = found.order[:show]
    x = _chosen(sets, chosen)
    maps = torch.from_numpy(detector.explain(_images(x)))[:, 0]
    # One scale for all: from what most pixels have to the most that any has.
    low, high = float(maps.median()), float(maps.max())
    heat = ((maps - low) / max(high - low, 1e-6)).clamp(0, 1)
    colors = torch.from_numpy(colormaps["turbo"](heat.numpy())[..., :3]).permute(0, 3, 1, 2)
    gray = x.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    strength = 0.25 + 0.5 * heat[:, None]
    over = (1 - strength) * gray + strength * (2 * colors.float() - 1)
    images = x.expand(-1, 3, -1, -1)
    names = ("most anomalous", "where")
    return plots.paired_grid(images, over.clamp(-1, 1), path, columns=len(x), names=names)


def names_of(paths: Sequence[Path], sets: Sequence[Images]) -> list[str]:
    """What the images of each path are called: their files, or the path and a number.

    Args:
        paths: pictures, folders of pictures or files of many images.
        sets: the images of each path, as `damc.train.origin.Origin.load` gives them.
    """
    names = []
    for path, images in zip(paths, sets, strict=True):
        if path.is_dir():
            names += [str(file) for file in list_pictures(path)]
        elif path.suffix.lower() in PICTURE_SUFFIXES:
            names.append(str(path))
        else:
            names += [f"{path}[{i}]" for i in range(len(images))]
    return names


def _chosen(sets: Sequence[Images], order: Sequence[int]) -> Tensor:
    """Some of all the images, (n, C, H, W) in [-1, 1]."""
    places = [(images, i) for images in sets for i in range(len(images))]
    return torch.cat([places[i][0].batch(torch.tensor([places[i][1]])) for i in order])


def _images(x: Tensor) -> Images:
    return Images(ArrayStore(x.numpy(), -1.0), name="chosen")
