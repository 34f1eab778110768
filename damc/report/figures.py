"""Figures for a notebook or a file: training curves, grids of images, scattered points.

Every function returns a matplotlib figure, which a notebook shows, and writes it as well where a
path is given. The figures are made without pyplot: no window opens, no state is kept.
"""

from __future__ import annotations

__all__ = [
    "curves",
    "images",
    "new_figure",
    "pairs",
    "pixels_of",
    "png_of",
    "save_figure",
    "tidy",
    "tiles_of",
]

import functools
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from damc.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOR = "#0072B2"
"""The first color of Okabe and Ito's palette, which color-blind readers can tell apart."""


def curves(
    records: Sequence[Mapping[str, Any]],
    keys: Sequence[str] | None = None,
    *,
    title: str = "",
    names: Mapping[str, str] | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Training curves, a panel for each quantity: raw values, and a running mean on top.

    Args:
        records: such as `damc.train.run.Run.metrics` gives; missing and null values are gaps.
        keys: which quantities; without it, every numeric one.
        title: text above the panels.
        names: what is written above a quantity's panel, where its key says too little.
        path: a PNG to write as well.
    """
    numeric = [
        key
        for key in dict.fromkeys(key for record in records for key in record)
        if key != "iteration" and any(_is_number(record.get(key)) for record in records)
    ]
    missing = [key for key in keys or () if key not in numeric]
    if missing or not numeric:
        raise BadInput(
            f"keys must be among the numbers of the metrics, {', '.join(numeric) or 'none'}, "
            f"got {', '.join(missing) or 'none'}"
        )
    shown = list(keys or numeric)
    columns = min(3, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(4.2 * columns, 2.5 * rows + (0.4 if title else 0.0))
    for i, key in enumerate(shown):
        points = [
            (record.get("iteration", number), record[key])
            for number, record in enumerate(records)
            if _is_number(record.get(key))
        ]
        x, y = np.array(points, dtype=float).T
        axes = figure.add_subplot(rows, columns, i + 1)
        few = len(y) < 50
        axes.plot(x, y, color=COLOR, alpha=1.0 if few else 0.3, linewidth=1.0)
        if few:
            axes.plot(x, y, ".", color=COLOR, markersize=4)
        else:
            axes.plot(x, _running_mean(y, max(1, len(y) // 25)), color=COLOR, linewidth=1.8)
        if y.min() > 0 and y.max() > 100 * y.min():
            axes.set_yscale("log")
        axes.set_title((names or {}).get(key, key.replace("_", " ")), fontsize=10)
        if i + columns >= len(shown):
            axes.set_xlabel("iteration")
        tidy(axes)
    if title:
        figure.suptitle(title)
    return save_figure(figure, path)


def images(
    pictures: Tensor,
    *,
    columns: int = 8,
    labels: Sequence[str] | None = None,
    title: str = "",
    path: str | Path | None = None,
) -> Figure:
    """A grid of images, row by row.

    Args:
        pictures: ``(N, C, H, W)`` in [-1, 1] with C of 1 or 3; values outside are clipped.
        columns: images in a row.
        labels: one short text for each image, drawn under it.
        title: text above the grid.
        path: a PNG to write as well.
    """
    tiles = tiles_of(pictures, columns, labels)
    columns = min(columns, len(tiles))
    rows = math.ceil(len(tiles) / columns)
    high, wide = tiles.shape[1:3]
    side = 0.9 + (0.25 if labels is not None else 0.0)
    figure = new_figure(0.9 * columns, side * rows * high / wide + (0.3 if title else 0.0))
    for k, axes in enumerate(figure.subplots(rows, columns, squeeze=False).ravel()):
        axes.set_axis_off()
        if k < len(tiles):
            axes.imshow(tiles[k], interpolation="nearest")
            if labels is not None:
                axes.set_title(labels[k], fontsize=8, y=-0.3)
    if title:
        figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def pairs(
    above: Tensor,
    below: Tensor,
    *,
    names: tuple[str, str] = ("data", "model"),
    path: str | Path | None = None,
) -> Figure:
    """Images in one row above others that belong to them, both ``(N, C, H, W)``."""
    if above.shape != below.shape:
        raise BadInput(
            f"the images below must have the shape of those above, {tuple(above.shape)}, "
            f"got {tuple(below.shape)}"
        )
    both = np.stack([pixels_of(above), pixels_of(below)])
    figure = new_figure(0.9 * len(above) + 0.5, 2.0 * above.shape[2] / above.shape[3])
    for row, line in enumerate(figure.subplots(2, len(above), squeeze=False)):
        for column, axes in enumerate(line):
            axes.imshow(both[row, column], interpolation="nearest")
            axes.set_xticks([]), axes.set_yticks([])
            axes.spines[:].set_visible(False)
        line[0].set_ylabel(names[row], fontsize=9)
    return save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that many inches."""
    return _kind()(figsize=(width, height), dpi=120, layout="constrained")


def save_figure(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written as a PNG where a path is given."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(png_of(figure))
    return figure


def png_of(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def tidy(axes: Any) -> None:
    """Axes with a light grid and without a box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.tick_params(labelsize=8)


@functools.cache
def _kind() -> type[Figure]:
    """A figure that notebooks show; matplotlib's own shows only after pyplot was imported."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            return png_of(self)

    return ShownFigure


def tiles_of(
    pictures: Tensor, columns: int, labels: Sequence[str] | None
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """`pixels_of` images for a grid with so many columns and perhaps a label under each."""
    tiles = pixels_of(pictures)
    if columns < 1:
        raise BadInput(f"columns must be at least 1, got {columns}")
    if labels is not None and len(labels) != len(tiles):
        raise BadInput(f"labels must be as many as the {len(tiles)} images, got {len(labels)}")
    return tiles


def pixels_of(pictures: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Images ``(N, C, H, W)`` in [-1, 1] as bytes, ``(N, H, W, 3)``."""
    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3) or 0 in pictures.shape:
        raise BadInput(f"images must have shape (N, 1 or 3, H, W), got {tuple(pictures.shape)}")
    if not pictures.is_floating_point() or not bool(torch.isfinite(pictures).all()):
        raise BadInput(f"images must be finite floats in [-1, 1], got {pictures.dtype} or others")
    scaled = ((pictures.detach().cpu().float().clamp(-1, 1) + 1) * 127.5).round()
    array: np.ndarray[Any, np.dtype[np.uint8]] = scaled.to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.repeat(array, 3, axis=3) if array.shape[3] == 1 else array


def _running_mean(
    y: np.ndarray[Any, np.dtype[np.float64]], window: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Centered mean over about `window` values; at the ends over those that are there."""
    total = np.concatenate([[0.0], np.cumsum(y)])
    i = np.arange(len(y))
    low, high = np.maximum(0, i - window // 2), np.minimum(len(y), i + window // 2 + 1)
    mean: np.ndarray[Any, np.dtype[np.float64]] = (total[high] - total[low]) / (high - low)
    return mean


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
