"""What users call X, as data that a detector can go through: vectors, images, or a folder."""

from __future__ import annotations

__all__ = ["Data", "batches", "images_of", "measure", "read_images", "rows_of"]

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.scaling import Columns, Pixels, Scaling, layout
from damc.data import Images, load_images
from damc.data.sources import ArrayStore
from damc.errors import BadInput

Array = NDArray[Any]
Data = Array | Images
"""Vectors ``(n, d)``, images ``(n, C, H, W)`` as an array, or `damc.data.Images`."""

_NUMBERS = 2**22  # in a batch: 16 MB, and some times that in maps of it


def read_images(X: Any, shape: tuple[int, ...] | None = None) -> Data | None:
    """Images from whatever holds some; None for vectors.

    Args:
        X: `Images`, a folder or file as `damc.data.load_images` takes it, an array or tensor
            ``(n, H, W)``, ``(n, C, H, W)`` or ``(n, H, W, C)``, or a list of such images.
        shape: (C, H, W) of the images a detector knows, if it does: a single one is then taken
            without its leading dimension.
    """
    if isinstance(X, Images):
        return X
    if isinstance(X, str | Path):
        return load_images(Path(X))
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    if isinstance(X, list | tuple) and len({np.shape(each) for each in X}) > 1:
        if all(np.ndim(each) >= 2 for each in X):
            sizes = sorted({"x".join(map(str, np.shape(each))) for each in X})
            raise BadInput(f"X must hold images of one size, got {', '.join(sizes[:4])}")
        return None
    ndim = X.ndim if hasattr(X, "ndim") else np.ndim(X)
    if shape is not None and len(shape) == 3 and min(shape[1:]) > 1:
        h, w = shape[1:]
        single = {shape, (h, w, shape[0])} | ({(h, w)} if shape[0] == 1 else set())
        if tuple(np.shape(X)) in single and (ndim == 2 or shape[0] > 1):
            X, ndim = np.asarray(X)[None], ndim + 1
    if ndim > 4:
        raise BadInput(
            "X must be a table (n, d) or images (n, h, w), (n, c, h, w) or (n, h, w, c), got shape "
            f"{np.shape(X)}"
        )
    if ndim < 3:
        return None
    images = layout(np.asarray(X))
    check_finite(images)
    return images


def check_finite(data: Array) -> None:
    """Refuses NaN and infinities."""
    if data.dtype.kind == "f" and not np.isfinite(data).all():
        raise BadInput("X must hold finite numbers, got NaN or inf")


def rows_of(data: Data, index: Array) -> Data:
    """Some of the data, in that order."""
    return data.subset(index) if isinstance(data, Images) else data[index]


def measure(data: Data) -> Scaling:
    """The scaling that data suggest."""
    if isinstance(data, Images):
        return Pixels(data.shape, None, None)
    return Columns.measure(data) if data.ndim == 2 else Pixels.measure(data)


def batches(data: Data, scaling: Scaling) -> Iterator[Tensor]:
    """Model-scale data ``(B, C, H, W)``, as many at a time as fit in little memory."""
    size = max(1, min(512, _NUMBERS // max(1, math.prod(scaling.shape))))
    if isinstance(scaling, Pixels) and not isinstance(data, Images):
        scaling = scaling.settled(data)  # by all of them: a part may lack the darkest pixels
    for start in range(0, len(data), size):
        if isinstance(data, Images):
            yield data.batch(torch.arange(start, min(start + size, len(data))))
        else:
            yield torch.from_numpy(scaling(data[start : start + size]))


def images_of(data: Data, scaling: Scaling) -> Images:
    """Data as what `damc.fit` takes; vectors stay unbounded."""
    if isinstance(data, Images):
        return data
    return Images(ArrayStore(scaling(data), -1.0), name="X")
