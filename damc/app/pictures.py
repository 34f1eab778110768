"""What the page shows: sheets of images, heat maps and the panels of a density, as pictures."""

from __future__ import annotations

__all__ = ["above_maps", "density_panels", "heat", "sheet"]

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from damc.app.densities import Explored
from damc.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

_TILE = 56  # screen pixels of an image, at least
_GAP = 2
_ORDER = ("annealing", "chains", "amortized sampler", "damc.sample")


def sheet(images: Tensor, columns: int = 8) -> Image:
    """Images ``(N, C, H, W)`` in [-1, 1] in rows, on white."""
    from PIL import Image

    if images.ndim != 4 or images.shape[1] not in (1, 3) or not len(images):
        raise BadInput(f"images must have shape (N, 1 or 3, H, W), got {tuple(images.shape)}")
    n, _, height, width = images.shape
    scale = math.ceil(_TILE / max(height, width))
    pixels = ((images.detach().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    pixels = pixels.expand(-1, 3, -1, -1)
    pixels = pixels.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    columns = min(columns, n)
    rows = math.ceil(n / columns)
    h, w = height * scale + _GAP, width * scale + _GAP
    whole = torch.full((rows * h + _GAP, columns * w + _GAP, 3), 255, dtype=torch.uint8)
    for k, tile in enumerate(pixels):
        top, left = _GAP + k // columns * h, _GAP + k % columns * w
        whole[top : top + h - _GAP, left : left + w - _GAP] = tile.permute(1, 2, 0)
    return Image.fromarray(whole.numpy())


def heat(images: Tensor, maps: Tensor, low: float | None = None) -> Tensor:
    """Images ``(N, C, H, W)`` under maps ``(N, H, W)`` from blue to red, ``(N, 3, H, W)``.

    One scale for all: from what most pixels have, or `low`, to the most that any has.
    """
    from matplotlib import colormaps

    low = float(maps.median()) if low is None else low
    share = ((maps - low) / max(float(maps.max()) - low, 1e-6)).clamp(0, 1)
    colors = torch.from_numpy(colormaps["turbo"](share.numpy())[..., :3]).permute(0, 3, 1, 2)
    gray = images.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    strength = 0.25 + 0.5 * share[:, None]
    return ((1 - strength) * gray + strength * (2 * colors.float() - 1)).clamp(-1, 1)


def above_maps(images: Tensor, maps: Tensor, order: Sequence[int], columns: int = 8) -> Image:
    """Images ``(N, C, H, W)`` in rows, each row above that of their `heat`.

    Args:
        images: in [-1, 1].
        maps: of them, ``(N, H, W)``.
        order: which ones to show, the first one first.
        columns: images in a row.
    """
    color, over, rows = images.expand(-1, 3, -1, -1), heat(images, maps), []
    columns = min(columns, len(order))
    for start in range(0, len(order), columns):
        part = list(order[start : start + columns])
        blank = torch.ones(columns - len(part), *color.shape[1:])  # rows stay below each other
        rows += [color[part], blank, over[part], blank]
    return sheet(torch.cat(rows), columns)


def density_panels(seen: Explored) -> Image:
    """The exact density, and the points of each way of sampling on its contours."""
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(10, 6.6), dpi=100, layout="constrained")
    axes = figure.subplots(2, 3).flatten()
    low, high = seen.grid.low.tolist(), seen.grid.high.tolist()
    box = (low[0], high[0], low[1], high[1])
    shown = seen.grid.mass.sqrt().numpy()  # faint modes are seen, too
    axes[0].imshow(shown, origin="lower", extent=box, aspect="auto", cmap="viridis")
    axes[0].set_title("exact, on a grid", fontsize=10)
    for ax, name in zip(axes[1:], _ORDER, strict=False):
        panel = seen.panels.get(name)
        ax.contour(shown, 4, origin="lower", extent=box, colors="0.75", linewidths=0.6)
        ax.set(xlim=box[:2], ylim=box[2:])
        if panel is not None and panel.points is not None:
            z = panel.points.numpy()
            ax.scatter(z[:, 0], z[:, 1], s=2, c="#1f5fa8", alpha=0.35, linewidths=0)
        note = "" if panel is None else panel.note
        ax.set_title(f"{name}\n{note[:60]}", fontsize=10, wrap=True)
    for ax in axes[:5]:
        ax.tick_params(labelsize=7)
    _bars(axes[5], seen)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    picture = Image.open(buffer, formats=("PNG",))
    picture.load()
    return picture


def _bars(ax: Any, seen: Explored) -> None:
    """How far the points of each way are from the exact density."""
    rows = [p for p in seen.panels.values() if p.distance is not None]
    ax.barh(range(len(rows)), [p.distance for p in rows], color="#1f5fa8", height=0.3)
    for k, panel in enumerate(rows):  # names stand above the bars and take no room beside them
        ax.text(0.004, k - 0.22, f"{panel.title}: {panel.distance:.3f}", fontsize=9, va="bottom")
    ax.set(xlim=(0, max(0.3, *(p.distance or 0 for p in rows)) * 1.05), ylim=(4.5, -0.8))
    ax.set_yticks([])
    ax.set_title("distance to the exact density", fontsize=10)
    ax.tick_params(labelsize=7)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
