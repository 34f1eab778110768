"""Where data are anomalous: a map of the shape of X, higher is more anomalous."""

from __future__ import annotations

__all__ = ["explain_vectors", "in_shape_of"]

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.neighbors import nearest
from damc.anomaly.parts import NearNormal, Part
from damc.errors import BadInput


def explain_vectors(parts: Sequence[Part], x: Tensor) -> Tensor:
    """How far each column of x ``(B, 1, 1, d)`` lies from the nearest normal rows, ``(B, d)``.

    In standard deviations of the column, from the mean of the nearest rows that a part remembers.

    Args:
        parts: of a detector of vectors.
        x: standardized rows.
    """
    near = [part.neighbors for part in parts if isinstance(part, NearNormal)]
    if not near or near[0] is None:
        raise BadInput("score_kind must be 'auto' or 'neighbors' to explain vectors")
    _, index = nearest(x.flatten(1), near[0].points, near[0].k)
    return (x.flatten(1) - near[0].points[index].mean(1)).abs()


def in_shape_of(maps: Tensor, X: Any) -> NDArray[np.float32]:
    """Maps ``(n, H, W)`` or rows ``(n, d)`` in the shape of what they explain: all channels of a
    pixel share its value.

    Args:
        maps: one for each image or row.
        X: as it was given, an array, a list or `damc.data.Images`.
    """
    shape = (len(X), *X.shape) if hasattr(X, "batch") else np.shape(X)
    values = maps.numpy()
    if values.size == np.prod(shape):
        return values.reshape(shape)
    n, h, w = values.shape
    last = shape[-1] != w or shape[-3:-1] == (h, w)  # channels stand last
    spread = values[..., None] if last else values[:, None]
    return np.broadcast_to(spread, (n, *shape[-3:])).reshape(shape).copy()
