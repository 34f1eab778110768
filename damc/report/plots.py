"""Pictures: grids of images, training curves, histograms. Every function writes one PNG.

Images are float tensors in [-1, 1]; values outside are clipped, values that are not finite are
refused. Files are written atomically, so that an open viewer never shows half a picture.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from damc.disk import write_atomically
from damc.errors import BadInput
from damc.report.figures import curves as draw_curves
from damc.report.figures import new_figure, pixels_of, png_of, tidy, tiles_of
from damc.report.words import CURVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "bars",
    "curves",
    "histograms",
    "image_grid",
    "lines",
    "paired_grid",
    "strips",
    "traces",
]


def bars(panels: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path, label: str) -> Path:
    """Draw a panel of horizontal bars for each key: means, with every single value as a dot.

    Args:
        panels: by title, then by row, the values of that row (one for each seed).
        path: the PNG to write.
        label: what the values are.
    """
    rows = list(dict.fromkeys(row for panel in panels.values() for row in panel))
    if not rows:
        raise BadInput("panels must have at least one value, got none")
    figure = new_figure(1.8 + 2.6 * len(panels), 1.0 + 0.32 * len(rows))
    shown = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, panel) in zip(shown, panels.items(), strict=True):
        for i, row in enumerate(rows):
            values = [float(value) for value in panel.get(row, ())]
            if values:
                axes.barh(i, sum(values) / len(values), color="#7aa6c2", height=0.65)
                axes.plot(values, [i] * len(values), "o", color="0.2", markersize=3)
        axes.set_title(title, fontsize=9)
        axes.set_yticks(range(len(rows)), rows)
        tidy(axes)
    shown[0].invert_yaxis()
    figure.supxlabel(label, fontsize=9)
    return _save(figure, path)


def lines(
    panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]],
    path: str | Path,
    across: str,
    label: str,
) -> Path:
    """Draw a panel of lines for each key on logarithmic axes: means, and each value as a dot.

    Args:
        panels: by title, then by line, then by place along the axis, the values there.
        path: the PNG to write.
        across: what the places are.
        label: what the values are.
    """
    names = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    if not names:
        raise BadInput("panels must have at least one value, got none")
    figure = new_figure(1.2 + 4.0 * len(panels), 3.6)
    shown = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, panel) in zip(shown, panels.items(), strict=True):
        for name, values in panel.items():
            color = f"C{names.index(name) % 10}"
            x = sorted(values)
            axes.plot(x, [np.mean(values[k]) for k in x], color=color, label=name, linewidth=1.6)
            for k in x:
                axes.plot([k] * len(values[k]), values[k], ".", color=color, markersize=5)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(across)
        tidy(axes)
    shown[0].set_ylabel(label)
    shown[-1].legend(fontsize=8, frameon=False)
    return _save(figure, path)


def image_grid(
    images: Tensor,
    path: str | Path,
    columns: int = 8,
    scale: int | None = None,
    labels: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Path:
    """Draw images row by row.

    Args:
        images: images in [-1, 1], (N, C, H, W) with C = 1 or 3.
        path: the PNG to write.
        columns: images in a row.
        scale: screen pixels for one image pixel; without it, small images grow to about 80.
        labels: one short text for each image, drawn under it.
        names: one text for each row, drawn left of it.
    """
    tiles = tiles_of(images, columns, labels)
    columns = min(columns, len(tiles))
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    under = None
    if labels is not None:
        under = [list(labels[i : i + columns]) for i in range(0, len(tiles), columns)]
    if names is not None and len(names) != len(rows):
        raise BadInput(f"names must be as many as the {len(rows)} rows, got {len(names)}")
    return _sheet(rows, path, scale, under=under, left=names)


def paired_grid(
    originals: Tensor,
    reconstructions: Tensor,
    path: str | Path,
    columns: int = 8,
    scale: int | None = None,
    names: Sequence[str] = ("data", "model"),
) -> Path:
    """Draw each row of originals above the row of their reconstructions, both (N, C, H, W).

    The names label the rows, two for each pair of rows or one for every row.
    """
    if originals.shape != reconstructions.shape:
        raise BadInput(
            f"reconstructions must have the shape of the originals, {tuple(originals.shape)}, "
            f"got {tuple(reconstructions.shape)}"
        )
    above, below = pixels_of(originals), pixels_of(reconstructions)
    if columns < 1:
        raise BadInput(f"columns must be at least 1, got {columns}")
    rows = []
    for i in range(0, len(above), columns):
        rows += [above[i : i + columns], below[i : i + columns]]
    return _sheet(rows, path, scale, left=(list(names) * len(rows))[: len(rows)], group=2)


def strips(
    images: Tensor,
    path: str | Path,
    scale: int | None = None,
    times: Sequence[int | str] | None = None,
) -> Path:
    """Draw chains along time, one chain a row: images (T, N, C, H, W), `times` above columns."""
    if images.ndim != 5:
        raise BadInput(f"images must have shape (T, N, C, H, W), got {tuple(images.shape)}")
    if times is not None and len(times) != len(images):
        raise BadInput(f"times must be as many as the {len(images)} images, got {len(times)}")
    length, chains = images.shape[:2]
    tiles = pixels_of(images.transpose(0, 1).reshape(-1, *images.shape[2:]))
    rows = list(tiles.reshape(chains, length, *tiles.shape[1:]))
    return _sheet(rows, path, scale, top=None if times is None else list(map(str, times)))


def curves(
    metrics: Sequence[Mapping[str, Any]],
    path: str | Path,
    keys: Sequence[str] | None = None,
    title: str = "",
) -> Path:
    """Draw training curves, a panel for each quantity: raw values, and a running mean on top.

    Args:
        metrics: records such as `Run.metrics` gives; missing and null values are gaps.
        path: the PNG to write.
        keys: which quantities; without it, every numeric one.
        title: text above the panels.
    """
    return _save(draw_curves(metrics, keys, title=title, names=CURVES), path)


def histograms(
    values: Mapping[str, Tensor | Sequence[float]],
    path: str | Path,
    xlabel: str,
    title: str = "",
    bins: int = 40,
) -> Path:
    """Draw named sets of numbers as histograms over common bins."""
    arrays = {
        name: torch.as_tensor(v).detach().cpu().double().numpy().ravel()
        for name, v in values.items()
    }
    for name, array in arrays.items():
        if not array.size or not np.isfinite(array).all():
            raise BadInput(f"values of {name!r} must be finite numbers, got none or others")
    if not arrays:
        raise BadInput("values must have at least one set of numbers, got none")
    edges = np.histogram_bin_edges(np.concatenate(list(arrays.values())), bins).tolist()
    figure = new_figure(6.4, 3.8)
    axes = figure.add_subplot()
    for i, (name, array) in enumerate(arrays.items()):
        color = _COLORS[i % len(_COLORS)]
        label = f"{name} (n = {array.size:,})"
        axes.hist(array, edges, density=True, color=color, alpha=0.25)
        # Lines differ in dashes too, so that the picture also works in gray.
        style = _DASHES[i % len(_DASHES)]
        axes.hist(
            array, edges, density=True, color=color, histtype="step", ls=style, lw=1.6, label=label
        )
    axes.set_xlabel(xlabel)
    axes.set_ylabel("density")
    axes.set_title(title)
    axes.legend(frameon=False)
    tidy(axes)
    return _save(figure, path)


def traces(
    steps: Sequence[int],
    values: Tensor,
    path: str | Path,
    ylabel: str,
    reference: tuple[float, float] | None = None,
) -> Path:
    """Draw a quantity along chains: every chain faint, their mean on top.

    Args:
        steps: where along the chains, T of them.
        values: one column a chain, (T, B).
        path: the PNG to write.
        ylabel: what the quantity is.
        reference: mean and standard deviation of the same quantity on data, drawn as a band.
    """
    if values.shape[:1] != (len(steps),) or values.ndim != 2 or 0 in values.shape:
        raise BadInput(f"values must have shape ({len(steps)}, B), got {tuple(values.shape)}")
    y = values.detach().cpu().double().numpy()
    if not np.isfinite(y).all():
        raise BadInput("values must be finite, got NaN or infinity")
    figure = new_figure(6.4, 3.8)
    axes = figure.add_subplot()
    axes.plot(steps, y, color=_COLORS[0], alpha=0.15, linewidth=0.7)
    axes.plot(
        steps, y.mean(1), color=_COLORS[0], linewidth=1.8, label=f"mean of {y.shape[1]} chains"
    )
    if reference is not None:
        mean, spread = reference
        axes.axhspan(mean - spread, mean + spread, color=_COLORS[1], alpha=0.15)
        axes.axhline(mean, color=_COLORS[1], ls=_DASHES[1], lw=1.4, label="data")
    axes.set_xlabel("step")
    axes.set_ylabel(ylabel)
    axes.legend(frameon=False)
    tidy(axes)
    return _save(figure, path)


_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
_DASHES = ("-", "--", "-.", ":")
_INK = (40, 40, 40)


def _sheet(
    rows: Sequence[np.ndarray[Any, np.dtype[np.uint8]]],
    path: str | Path,
    scale: int | None,
    *,
    left: Sequence[str] | None = None,
    top: Sequence[str] | None = None,
    under: Sequence[Sequence[str]] | None = None,
    group: int = 1,
) -> Path:
    """Lay tiles (n, H, W, 3) on white, row under row, with texts around them.

    A wider gap follows every `group` rows when `group` is above 1.
    """
    from PIL import Image, ImageDraw, ImageFont

    height, width = rows[0].shape[1:3]
    scale = max(1, math.ceil(80 / max(height, width))) if scale is None else scale
    if scale < 1:
        raise BadInput(f"scale must be at least 1, got {scale}")
    height, width, pad = height * scale, width * scale, 2
    font = ImageFont.load_default(13)
    line = 18
    margin = max((math.ceil(font.getlength(text)) + 8 for text in left or ()), default=0)
    gap = 12 if group > 1 else 0
    pitch = height + pad + (line if under else 0)
    head = line if top else 0
    groups = math.ceil(len(rows) / group)
    size = (
        margin + max(map(len, rows)) * (width + pad) + pad,
        head + len(rows) * pitch + pad + (groups - 1) * gap,
    )
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)

    def text_in(text: str, center: float, y: int) -> None:
        while text and font.getlength(text) > width:
            text = text[:-2] + "…" if len(text) > 2 else ""
        draw.text((center, y), text, _INK, font, anchor="ma")

    for r, row in enumerate(rows):
        y = head + pad + r * pitch + (r // group) * gap
        if left:
            draw.text((margin - 6, y + height / 2), left[r], _INK, font, anchor="rm")
        for c, tile in enumerate(row):
            x = margin + pad + c * (width + pad)
            picture = Image.fromarray(tile).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(picture, (x, y))
            if under:
                text_in(under[r][c], x + width / 2, y + height + 1)
            if top and r == 0:
                text_in(top[c], x + width / 2, 2)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", optimize=True)
    return write_atomically(path, buffer.getvalue())


def _save(figure: Figure, path: str | Path) -> Path:
    return write_atomically(path, png_of(figure))
