from __future__ import annotations

import math

import pytest
import torch

from damc.errors import BadInput
from damc.metrics.images import mse, psnr


def test_mse_is_the_mean_over_pixels_and_channels_of_each_image() -> None:
    x = torch.zeros(2, 3, 4, 5)
    y = x.clone()
    y[1, 0, 0, 0] = 2.0
    assert torch.allclose(mse(x, y), torch.tensor([0.0, 4 / 60]))


def test_psnr_takes_the_range_of_minus_one_to_one() -> None:
    """An image in [-1, 1] and the same in [0, 1] with peak 1 have one PSNR."""
    g = torch.Generator().manual_seed(0)
    x, y = (torch.rand(4, 1, 8, 8, generator=g, dtype=torch.float64) for _ in range(2))
    expected = [-10 * math.log10(float((a - b).square().mean())) for a, b in zip(x, y, strict=True)]
    assert psnr(2 * x - 1, 2 * y - 1).tolist() == pytest.approx(expected, rel=1e-12)
    black, white = -torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    assert psnr(black, white).item() == 0.0
    assert psnr(white, white).item() == math.inf


def test_images_of_two_shapes_are_refused() -> None:
    with pytest.raises(BadInput, match="of one shape"):
        mse(torch.zeros(2, 1, 8, 8), torch.zeros(1, 1, 8, 8))
