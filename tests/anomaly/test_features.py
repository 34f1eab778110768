"""What is looked at in images: sizes, directions, planes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from damc.anomaly.features import (
    Projection,
    Standardized,
    gradients,
    pixels,
    spectrum,
    tiles,
    variants,
)
from damc.errors import BadInput


def wave(angle: float, side: int = 28) -> torch.Tensor:
    """Stripes whose brightness changes along an angle, (1, 1, side, side)."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.sin(0.8 * (x * math.cos(angle) + y * math.sin(angle)))[None, None]


def test_gradients_tell_directions_and_not_sides() -> None:
    for k in range(8):
        f = gradients(wave(math.pi * k / 8)).view(8, 7, 7)
        assert int(f.mean((1, 2)).argmax()) == k
    x = wave(0.3)
    assert torch.allclose(gradients(x), gradients(-x), atol=1e-5)  # an edge from either side
    assert torch.allclose(gradients(x + 0.2), gradients(x), atol=1e-5)
    assert torch.allclose(gradients(4 * x), 2 * gradients(x), atol=1e-4)  # roots of lengths
    assert float(gradients(torch.zeros(1, 1, 9, 9)).max()) < 1e-2


def test_small_moves_change_gradients_less_than_pixels() -> None:
    x = torch.zeros(1, 1, 28, 28)
    x[..., 8:20, 13:15] = 1
    moved = x.roll(1, 3)

    def relative(f: torch.Tensor, g: torch.Tensor) -> float:
        return float((f - g).norm() / f.norm())

    assert relative(gradients(x), gradients(moved)) < 0.6 * relative(pixels(x), pixels(moved))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 20), (1, 5, 300), (3, 224, 224)])
def test_images_of_any_size_become_vectors_of_little_length(shape: tuple[int, int, int]) -> None:
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert pixels(x).shape[0] == 2 and pixels(x).shape[1] <= 3 * 32 * 32
    assert gradients(x).shape[1] <= 8 * 3 * 7 * 7
    assert bool(torch.isfinite(gradients(x)).all())
    for each in variants(x):
        assert each.shape == x.shape and bool(torch.isfinite(each).all())


def test_variants_turn_and_scale() -> None:
    y, x = torch.meshgrid(torch.linspace(-1, 1, 41), torch.linspace(-2, 2, 81), indexing="ij")
    ramp = (x * 20)[None, None]  # pixels from the middle, to the right
    turned, back, smaller, larger = variants(ramp)
    middle = (..., slice(10, 31), slice(20, 61))
    for image, angle in ((turned, 0.15), (back, -0.15)):
        wanted = 20 * (x * math.cos(angle) - y * math.sin(angle))
        assert torch.allclose(image[middle], wanted[middle[1:]], atol=0.2)
    assert torch.allclose(smaller[middle], 1.08 * ramp[middle], atol=0.2)
    assert torch.allclose(larger[middle], 0.92 * ramp[middle], atol=0.2)


@pytest.mark.parametrize(("n", "p"), [(200, 12), (12, 200)])
def test_a_projection_is_the_main_directions_and_what_is_left(n: int, p: int) -> None:
    g = torch.Generator().manual_seed(0)
    f = torch.randn(n, 3, generator=g) @ torch.randn(3, p, generator=g) * 5
    f = f + torch.randn(n, p, generator=g) * 0.1 + 2
    plane = Projection.fit(f, 3)
    assert torch.allclose(plane.basis.T @ plane.basis, torch.eye(3), atol=1e-4)
    _, _, v = torch.linalg.svd(f - f.mean(0), full_matrices=False)
    assert torch.allclose((plane.basis.T @ v[:3].T).abs(), torch.eye(3), atol=2e-2)
    z = plane(f)
    assert z.shape == (n, 4)
    assert torch.allclose(z.norm(dim=1), (f - f.mean(0)).norm(dim=1), rtol=1e-4)
    off = (f - plane.inverse(f)).norm(dim=1)
    assert torch.allclose(z[:, 3], off, atol=1e-2)
    with pytest.raises(BadInput, match="n >= 2"):
        Projection.fit(f[:1], 3)


def test_a_spectrum_is_the_power_of_waves() -> None:
    """A wave along a row has its power in one band and direction, of brightness alone if gray."""
    step = torch.arange(32.0)
    wave = torch.cos(2 * math.pi * step * 4 / 32)  # 0.125 periods a pixel
    across, down = wave.expand(32, 32), wave[:, None].expand(32, 32)
    x = torch.stack([across.expand(3, 32, 32), down.expand(3, 32, 32)])
    f = spectrum(x).exp().view(2, 7, 4, 3)  # bands, directions, colors
    for image, direction in zip(f, (2, 0), strict=True):
        top = image.flatten().argmax()
        assert tuple(np.unravel_index(int(top), (7, 4, 3))) == (2, direction, 0)
        assert float(image[..., 1:].max()) < 2e-3
    moved = spectrum(x.roll((5, 9), (2, 3)))
    assert torch.allclose(moved, spectrum(x), atol=1e-3)  # wherever things are
    red = x * torch.tensor([1.0, 0, 0])[:, None, None]
    assert float(spectrum(red).exp().view(2, 7, 4, 3)[..., 1].max()) > 1


def test_columns_weigh_alike_once_standardized() -> None:
    f = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 50, 0.0])
    space = Standardized.fit(f + 7)
    assert torch.allclose(space(f + 7).std(0, correction=0), torch.tensor([1.0, 1, 0]), atol=1e-4)


def test_tiles_lie_on_a_grid_of_half_tiles() -> None:
    x = torch.zeros(1, 1, 40, 64)
    maps = tiles(x, 16)
    assert maps.shape == (1, 64 + 4 * 4 * 8, 5, 8)
    x[0, 0, 18, 34] = 1.0
    changed = (tiles(x, 16) != maps).any(1)[0]
    # Those of the pixel's own cell of 8x8, and of its neighbors, whose tiles overlap it.
    assert changed[2, 4] and not changed[0].any() and not changed[:, :3].any()
