"""The toy example's two pictures: posteriors of single observations, and all of them pooled.

z_1 points to the right and z_2 upwards. Colors follow the square root of the density, so that
faint modes are seen too.
"""

from __future__ import annotations

__all__ = [
    "density_images",
    "draw_pooled",
    "draw_posteriors",
    "exact_points",
    "histogram",
    "most_divided",
]

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from damc.density import LogProb
from damc.disk import write_atomically
from damc.toy.problem import GridPosterior, ToyModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EDGE = 3.5  # the posteriors' square is [-3.5, 3.5]^2
_POOLED_EDGE = 4.0  # the paper's
_PIXELS = 100
_SMOOTH = 1.5  # sd of the blur in pixels, on sampled and exact densities alike
_FACTOR = 0.15  # of the pooled picture's kernel density, as in the paper's code


def density_images(posteriors: Sequence[GridPosterior]) -> Tensor:
    """Exact densities at the pixels of the square, (G, 100, 100): rows are z_2, upwards."""
    pixels = _lattice(_EDGE).double()
    return torch.stack([p.log_prob(pixels).exp().view(_PIXELS, _PIXELS) for p in posteriors])


def histogram(z: Tensor) -> Tensor:
    """Density of points z, (n, 2), in each pixel of the same square, (100, 100)."""
    size = 2 * _EDGE / _PIXELS
    cell = ((z + _EDGE) / size).floor().long()
    cell = cell[((cell >= 0) & (cell < _PIXELS)).all(1)]
    counts = torch.bincount(cell[:, 1] * _PIXELS + cell[:, 0], minlength=_PIXELS**2)
    return counts.double().view(_PIXELS, _PIXELS) / (len(z) * size**2)


def most_divided(densities: Tensor, n: int) -> list[int]:
    """The n densities, (G, R, R), that are split into the most separate parts, most divided first.

    The parts are those of the smallest region with 90 % of the mass; they are counted by
    exp(entropy) of their masses, so that a speck counts little.
    """
    from scipy import ndimage

    counts = []
    for density in densities:
        mass, order = (density / density.sum()).flatten().sort(descending=True)
        inside = torch.zeros(density.numel(), dtype=torch.bool)
        inside[order[: int((mass.cumsum(0) < 0.9).sum()) + 1]] = True
        labels, parts = ndimage.label(inside.view_as(density).numpy())
        share = torch.tensor(ndimage.sum(density.numpy(), labels, range(1, parts + 1)))
        counts.append(float(torch.special.entr(share / share.sum()).sum().exp()))
    best = sorted(range(len(counts)), key=lambda i: -counts[i])
    return best[:n]


def draw_posteriors(
    path: str | Path, columns: Mapping[str, Tensor], exact: Tensor, x: Tensor
) -> Path:
    """One row for each x: samples as smoothed histograms, then the exact density.

    Colors mean the same density along a row.

    Args:
        path: the PNG to write.
        columns: samples by column title, (rows, n, 2) each; n may differ between columns.
        exact: exact densities from `density_images`, (rows, 100, 100).
        x: the observations, (rows, 2).
    """
    from scipy import ndimage

    figure, axes = _sheet(len(x), len(columns) + 1)
    for row in range(len(x)):
        images = {title: histogram(z[row]) for title, z in columns.items()}
        images["exact\nposterior"] = exact[row]
        smooth = [
            torch.as_tensor(ndimage.gaussian_filter(image.numpy(), _SMOOTH))
            for image in images.values()
        ]
        for column, (title, image) in enumerate(zip(images, smooth, strict=True)):
            _panel(axes[row][column], image, float(smooth[-1].max()), title if row == 0 else "")
        first, second = x[row].tolist()
        axes[row][0].set_ylabel(f"x = ({first:.1f}, {second:.1f})", fontsize=8)
    return _save(figure, path)


def draw_pooled(path: str | Path, columns: Mapping[str, Tensor], log_prior: LogProb) -> Path:
    """The paper's figure: samples of many x in one kernel density estimate, beside the prior.

    Args:
        path: the PNG to write.
        columns: samples by column title, (n, 2) each; the last one sets the colors.
        log_prior: normalized log-density of the prior, (B, 2) -> (B,).
    """
    from scipy.stats import gaussian_kde

    pixels = _lattice(_POOLED_EDGE)
    images = {
        title: torch.as_tensor(gaussian_kde(z.double().numpy().T, _FACTOR)(pixels.numpy().T))
        for title, z in columns.items()
    }
    top = float(list(images.values())[-1].max())
    figure, axes = _sheet(1, len(images) + 1)
    for column, (title, image) in enumerate(images.items()):
        _panel(axes[0][column], image.view(_PIXELS, _PIXELS), top, title)
    prior = log_prior(pixels).exp().view(_PIXELS, _PIXELS)
    _panel(axes[0][-1], prior, float(prior.max()), "prior\n(density)")
    return _save(figure, path)


@torch.no_grad()
def exact_points(model: ToyModel, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One point of the exact posterior of each of many x, (B, 2) -> (B, 2), for `draw_pooled`.

    All x share one grid with cells of 0.08, finer than the pooled picture's blur; a grid for each,
    as `ToyModel.grid_posteriors` makes, would take minutes.
    """
    size = 0.08
    side = torch.arange(-5 + size / 2, 5, size)
    cells = torch.cartesian_prod(side, side)
    log_prior, mean = model.log_prior(cells), model.likelihood.decoder(cells)
    picked = []
    for some in torch.split(x, 256):
        error = torch.cdist(some, mean).square_() / (2 * model.likelihood.sigma**2)
        mass = (log_prior - error).softmax(1)
        picked.append(torch.multinomial(mass, 1, generator=generator)[:, 0])
    jitter = torch.rand(x.shape, generator=generator) - 0.5
    return cells[torch.cat(picked)] + size * jitter


def _lattice(edge: float) -> Tensor:
    """Centers of the pixels of [-edge, edge]^2, (10000, 2), row by row from the lower left."""
    size = 2 * edge / _PIXELS
    side = torch.arange(_PIXELS) * size - edge + size / 2
    z_2, z_1 = torch.meshgrid(side, side, indexing="ij")
    return torch.stack([z_1, z_2], dim=-1).view(-1, 2)


def _sheet(rows: int, columns: int) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.25 * columns + 0.3, 1.25 * rows + 0.5), dpi=150)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.04, wspace=0.0, hspace=0.0)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _panel(axes: Any, image: Tensor, top: float, title: str) -> None:
    from matplotlib.colors import PowerNorm

    axes.imshow(
        image.numpy(),
        origin="lower",
        cmap="viridis",
        norm=PowerNorm(0.5, vmin=0.0, vmax=top),
        interpolation="bilinear",
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if title:
        axes.set_title(title, fontsize=9)


def _save(figure: Figure, path: str | Path) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight", pad_inches=0.06)
    return write_atomically(path, buffer.getvalue())
