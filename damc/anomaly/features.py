"""What is looked at in an image: pixels, the edges in each part of it, how coarse and fine it is.

`pixels`, `gradients` and `spectrum` turn images of any size into vectors; a `Projection` keeps the
directions in which normal data vary, `Standardized` makes columns weigh alike.
"""

from __future__ import annotations

__all__ = [
    "Projection",
    "Standardized",
    "columns",
    "gradients",
    "pixels",
    "spectrum",
    "tiles",
    "variants",
]

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from damc.errors import BadInput

_SIDE = 32  # pixels a side that an image is reduced to
_CELLS = 7  # parts a side whose edges are counted
_DIRECTIONS = 8
_SPECTRUM_SIDE = 64  # pixels
_BANDS = (0.02, 0.05, 0.09, 0.14, 0.2, 0.28, 0.38, 0.75)  # frequencies, in periods a pixel
_ANGLES = 4


def pixels(x: Tensor, side: int = _SIDE) -> Tensor:
    """Pixels of images ``(B, C, H, W)`` as vectors, larger images averaged down to at most `side`
    pixels in their longer dimension."""
    return _reduced(x, side).flatten(1)


def gradients(x: Tensor, cells: int = _CELLS, directions: int = _DIRECTIONS) -> Tensor:
    """How strong edges of each direction are in each cell of images ``(B, C, H, W)``, as vectors.

    Histograms of oriented gradients (Dalal and Triggs 2005): the gradient's length at a pixel
    counts for each of `directions` angles phi by cos^2(angle - phi), cut off at 45 degrees, an
    edge being the same from either side; the mean over a cell, and its root, by which a strong
    edge does not outweigh all others. What moves by less than a cell changes little.

    Args:
        x: images in [-1, 1].
        cells: of the longer side; they are square. Images beyond 16 pixels a cell are reduced.
        directions: angles between 0 and 180 degrees.
    """
    x = _reduced(x, 16 * cells)
    cell = max(1, math.ceil(max(x.shape[2:]) / cells))
    return _strengths(x, cell, directions).flatten(1)


def spectrum(x: Tensor, side: int = _SPECTRUM_SIDE) -> Tensor:
    """Log power of images ``(B, 3, H, W)`` in 7 bands of frequency and 4 directions, of brightness
    and two differences of colors, ``(B, 84)``.

    Textures, sharpness and how color varies tell photographs of one kind from others wherever
    things are in them. Images beyond `side` pixels are averaged down.
    """
    x = _reduced(x, side)
    red, green, blue = x.unbind(1)
    y = torch.stack([x.mean(1), red - green, blue - (red + green) / 2], 1)
    h, w = x.shape[2:]
    power = torch.fft.rfft2(y - y.mean((2, 3), keepdim=True)).abs().square() / (h * w)
    down = torch.fft.fftfreq(h, device=x.device)[:, None].expand(power.shape[2:])
    right = torch.fft.rfftfreq(w, device=x.device)[None].expand(power.shape[2:])
    frequency, angle = torch.hypot(down, right), torch.atan2(down, right)
    found = []
    for low, high in pairwise(_BANDS):
        for k in range(_ANGLES):
            turned = (angle + math.pi / 2 - (k - 0.5) * math.pi / _ANGLES) % math.pi
            inside = (frequency >= low) & (frequency < high) & (turned < math.pi / _ANGLES)
            share = inside.to(x) / inside.sum().clamp_min(1)
            found.append((power * share).sum((2, 3)))
    return (torch.cat(found, 1) + 1e-3).log()


def tiles(x: Tensor, tile: int) -> Tensor:
    """What is in every tile of images ``(B, C, H, W)``, as maps ``(B, F, h, w)``.

    Tiles of `tile` pixels a side, a multiple of 8, overlap by half, and stand out by a quarter at
    the edges, which are mirrored: their centers form a grid of cells of half a tile. A tile is
    8 x 8 means of pixels and 4 x 4 cells of `gradients`, either divided by the root of its size.
    """
    half, quarter = tile // 2, tile // 4
    more = [quarter + -side % half for side in x.shape[2:]]
    if max(more) >= min(x.shape[2:]):
        raise BadInput(f"tile must be smaller than the images, got {tile} for {tuple(x.shape[2:])}")
    x = functional.pad(x, (quarter, more[1], quarter, more[0]), mode="reflect")
    found = []
    for maps, across in (
        (functional.avg_pool2d(x, tile // 8), 8),
        (_strengths(x, quarter, _DIRECTIONS), 4),
    ):
        rows = functional.unfold(maps, across, stride=across // 2) / math.sqrt(across * across)
        h, w = ((side - across) // (across // 2) + 1 for side in maps.shape[2:])
        found.append(rows.view(len(x), -1, h, w))
    return torch.cat(found, 1)


def _strengths(x: Tensor, cell: int, directions: int) -> Tensor:
    """The root of the mean strength of edges of each direction in cells of so many pixels,
    ``(B, C directions, h, w)``."""
    right = functional.pad(x, (1, 1, 0, 0), mode="replicate")
    right = (right[..., 2:] - right[..., :-2]) / 2
    down = functional.pad(x, (0, 0, 1, 1), mode="replicate")
    down = (down[..., 2:, :] - down[..., :-2, :]) / 2
    length = torch.hypot(right, down).clamp_min(1e-6)
    # cos and sin of twice the angle, without the angle.
    cos = (right.square() - down.square()) / length
    sin = 2 * right * down / length
    parts = []
    for k in range(directions):
        phi = 2 * math.pi * k / directions
        # length * max(cos(2 angle - phi), 0)^2
        strength = (cos * math.cos(phi) + sin * math.sin(phi)).clamp_min(0).square() / length
        parts.append(functional.avg_pool2d(strength, cell, ceil_mode=True, count_include_pad=False))
    return torch.cat(parts, 1).sqrt()


def columns(x: Tensor) -> Tensor:
    """Standardized vectors ``(B, 1, 1, d)`` as they are, ``(B, d)``."""
    return x.flatten(1)


def variants(x: Tensor) -> list[Tensor]:
    """Images ``(B, C, H, W)`` turned by 0.15 radians and scaled by 8 %, either way: four sets."""
    found = []
    for angle, scale in ((0.15, 1.0), (-0.15, 1.0), (0.0, 1.08), (0.0, 0.92)):
        c, s, aspect = scale * math.cos(angle), scale * math.sin(angle), x.shape[2] / x.shape[3]
        theta = x.new_tensor([[c, -s * aspect, 0], [s / aspect, c, 0]])
        grid = functional.affine_grid(
            theta.expand(len(x), 2, 3), list(x.shape), align_corners=False
        )
        turned = functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
        found.append(turned)
    return found


@dataclass(frozen=True)
class Projection:
    """Coordinates along the main directions of normal data, and the distance from their plane.

    The last coordinate keeps what lies off the plane from being overlooked.

    Attributes:
        mean: of normal data, ``(p,)``.
        basis: orthonormal directions, those of the largest variance, ``(p, d)``.
    """

    mean: Tensor
    basis: Tensor

    @classmethod
    def fit(cls, f: Tensor, directions: int) -> Projection:
        """The main directions of f, ``(n, p)``: of few rows at most n - 1."""
        if f.ndim != 2 or len(f) < 2:
            raise BadInput(f"a projection needs rows (n, p) with n >= 2, got {tuple(f.shape)}")
        n, p = f.shape
        mean = f.mean(0)
        centered = f - mean
        d = min(directions, n - 1, p)
        if n < p:  # directions are combinations of the rows
            _, vectors = torch.linalg.eigh((centered @ centered.T).double())
            basis = torch.linalg.qr(centered.T @ vectors[:, -d:].flip(1).to(f)).Q
        else:
            _, vectors = torch.linalg.eigh((centered.T @ centered).double())
            basis = vectors[:, -d:].flip(1).to(f)
        return cls(mean, basis.contiguous())

    def __call__(self, f: Tensor) -> Tensor:
        """Coordinates of f ``(B, p)``, ``(B, d + 1)``."""
        centered = f - self.mean
        along = centered @ self.basis
        off = centered.square().sum(1) - along.square().sum(1)
        return torch.cat([along, off.clamp_min(0).sqrt()[:, None]], 1)

    def inverse(self, f: Tensor) -> Tensor:
        """The points of the plane nearest to f, both ``(B, p)``."""
        return self.mean + (f - self.mean) @ self.basis @ self.basis.T


@dataclass(frozen=True)
class Standardized:
    """Columns in units of their spread in normal data.

    Attributes:
        mean: of normal data, ``(p,)``.
        scale: their standard deviations, ``(p,)``; 1 for a column that does not vary.
    """

    mean: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, f: Tensor) -> Standardized:
        """From normal data f, ``(n, p)``."""
        scale = f.std(0, correction=0)
        return cls(f.mean(0), torch.where(scale > 1e-6, scale, torch.ones_like(scale)))

    def __call__(self, f: Tensor) -> Tensor:
        """f in those units, both ``(B, p)``."""
        return (f - self.mean) / self.scale


def _reduced(x: Tensor, side: int) -> Tensor:
    """Images ``(B, C, H, W)`` averaged down to at most `side` pixels in their longer dimension."""
    h, w = x.shape[2:]
    if max(h, w) <= side:
        return x
    scale = side / max(h, w)
    size = (max(1, round(h * scale)), max(1, round(w * scale)))
    return functional.interpolate(x, size, mode="area")
