"""Find the anomalies among images: a table with one line each, pictures of both ends, heat maps."""

from __future__ import annotations

__all__ = ["Detection", "detect", "draw_pictures", "names_of"]

import csv
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.threshold import Threshold
from damc.data import Images
from damc.data.pictures import PICTURE_SUFFIXES, list_pictures
from damc.data.sources import ArrayStore
from damc.disk import write_atomically
from damc.errors import BadInput
from damc.report import plots

if TYPE_CHECKING:
    from damc.anomaly.detector import AnomalyDetector

_CHUNK = 4096  # images scored between two writes


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

    names: Sequence[str]
    scores: NDArray[Any]
    probabilities: NDArray[Any]
    p_values: NDArray[Any]
    threshold: float

    @property
    def anomalous(self) -> NDArray[np.bool_]:
        """Which scores exceed the threshold, (N,)."""
        return self.scores > self.threshold

    @property
    def order(self) -> NDArray[np.int64]:
        """The images' numbers, the most anomalous first, (N,)."""
        return np.argsort(-self.scores, kind="stable")

    def write_csv(self, path: str | Path) -> Path:
        """One line for each image, in the order given: name, score, probability, p-value,
        anomalous."""
        return write_atomically(path, self._lines())

    def _lines(self) -> Iterator[bytes]:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["image", "score", "probability", "p_value", "anomalous"])
        columns = (self.names, self.scores, self.probabilities, self.p_values, self.anomalous)
        for name, score, probability, p, anomalous in zip(*columns, strict=True):
            row = [name, f"{score:.6g}", f"{probability:.4f}", f"{p:.4g}", int(anomalous)]
            writer.writerow(row)
            if text.tell() > 2**14:
                yield os.fsencode(text.getvalue())
                text.seek(0)
                text.truncate()
        yield os.fsencode(text.getvalue())


def detect(
    detector: AnomalyDetector,
    sets: Sequence[Images],
    names: Sequence[str],
    partial: Path | None = None,
) -> Detection:
    """Scores every image, some thousand at a time, in memory that does not grow with them.

    Args:
        detector: a fitted detector.
        sets: images, one or more sets of one shape.
        names: of all the images, in order.
        partial: a file for the scores so far, from which the same call resumes.
            It stays, for the caller to remove when the scores are elsewhere.
    """
    count = sum(map(len, sets))
    if len(names) != count:
        raise BadInput(f"there are {count} images and {len(names)} names")
    known = None if partial is None else _Partial(partial, _key(detector, names))
    scores = [] if known is None else known.read()
    done = sum(map(len, scores))
    begin = 0
    for images in sets:
        for start in range(0, len(images), _CHUNK):
            stop = min(start + _CHUNK, len(images))
            if begin + stop <= done:
                continue
            chunk = images.subset(slice(max(start, done - begin), stop))
            scores.append(detector.decision_function(chunk))
            if known is not None:
                known.add(scores[-1])
        begin += len(images)
    found = np.concatenate(scores)
    probabilities = detector.probabilities(found)[:, 1]
    p_values = Threshold(detector.normal_scores_, detector.quantile).p_values(found)
    return Detection(names, found, probabilities, p_values, detector.threshold_)


def draw_pictures(
    detector: AnomalyDetector,
    sets: Sequence[Images],
    found: Detection,
    folder: Path,
    show: int = 8,
) -> dict[str, Path]:
    """Draws ``ends.png``, the most and the least anomalous images with their reconstructions, if
    any, and ``maps.png``, where the most anomalous ones are so; gives both by their captions.

    Args:
        detector: a fitted detector.
        sets: the images that `found` scores.
        found: their scores.
        folder: where to write.
        show: how many of each end, at most half of all.
    """
    if show < 1:
        raise BadInput(f"n must be at least 1, got {show}")
    order = found.order
    count = min(show, max(1, len(order) // 2))
    most = _chosen(sets, order[:count].tolist())
    least = _chosen(sets, order[-count:][::-1].tolist()) if len(order) > 1 else most[:0]
    return {
        "The most and the least anomalous": _draw_ends(detector, most, least, folder / "ends.png"),
        "Where": _draw_maps(detector, most, folder / "maps.png"),
    }


def names_of(paths: Sequence[Path], sets: Sequence[Images]) -> Sequence[str]:
    """What the images of each path are called: their files, or the path and a number. A name is
    made when it is asked for.

    Args:
        paths: pictures, folders of pictures or files of many images.
        sets: the images of each path, as `damc.train.origin.Origin.load` gives them.
    """
    return _Names([_Name(path, len(images)) for path, images in zip(paths, sets, strict=True)])


def _draw_ends(detector: AnomalyDetector, most: Tensor, least: Tensor, path: Path) -> Path:
    """Both ends, their reconstructions under them if there is a network."""
    x, columns = torch.cat([most, least]), len(most)
    if detector.learner_ is None or detector.learner_.inference is None:
        ends = ["most"] * len(most) + ["least"] * len(least)
        return plots.image_grid(x, path, columns=columns, labels=ends)
    y = detector.reconstruct(_images(x))
    names = ("most anomalous", "model", "least anomalous", "model")
    return plots.paired_grid(x, y.clamp(-1, 1), path, columns=columns, names=names)


def _draw_maps(detector: AnomalyDetector, x: Tensor, path: Path) -> Path:
    """Images, and under each where it is anomalous, from blue to red."""
    from matplotlib import colormaps

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


def _chosen(sets: Sequence[Images], order: Sequence[int]) -> Tensor:
    """Some of all the images, (n, C, H, W) in [-1, 1]."""
    starts = np.cumsum([0, *map(len, sets)])
    found = []
    for i in order:
        k = int(np.searchsorted(starts, i, side="right")) - 1
        found.append(sets[k].batch(torch.tensor([i - int(starts[k])])))
    return torch.cat(found)


class _Name:
    """The names of the images of one path."""

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._files = list_pictures(path) if path.is_dir() else None
        self._alone = path.suffix.lower() in PICTURE_SUFFIXES
        self._count = count if self._files is None else len(self._files)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> str:
        if self._files is not None:
            return str(self._files[i])
        return str(self._path) if self._alone else f"{self._path}[{i}]"


class _Names(Sequence[str]):
    """The names of all images of several paths, in little memory."""

    def __init__(self, parts: Sequence[_Name]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        k = int(np.searchsorted(self._starts, i, side="right")) - 1
        return self._parts[k][i - int(self._starts[k])]


def _images(x: Tensor) -> Images:
    return Images(ArrayStore(x.numpy(), -1.0), name="chosen")


class _Partial:
    """Scores on their way to disk: a line that says whose, then float32 numbers."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.head = path, f"{key}\n".encode()

    def read(self) -> list[NDArray[np.float32]]:
        """The scores of the same detector and images, if some are there; else begins anew."""
        if self.path.is_file():
            blob = self.path.read_bytes()
            if blob.startswith(self.head):
                body = blob[len(self.head) :]
                # A write that was cut off leaves half a number.
                return [np.frombuffer(body[: len(body) // 4 * 4], np.float32)]
        write_atomically(self.path, self.head)
        return []

    def add(self, scores: NDArray[np.float32]) -> None:
        size = (self.path.stat().st_size - len(self.head)) // 4 * 4 + len(self.head)
        with self.path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(scores.astype(np.float32).tobytes())


def _key(detector: AnomalyDetector, names: Sequence[str]) -> str:
    """What tells these images and this detector from others."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(os.fsencode(f"{name}\n"))
    digest.update(detector.normal_scores_.tobytes())
    digest.update(repr((detector.threshold_, detector.seed_)).encode())
    return digest.hexdigest()
