"""How far reconstructed images are from their originals."""

from __future__ import annotations

__all__ = ["mse", "psnr"]

import torch
from torch import Tensor

from damc.errors import BadInput


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error per pixel and channel of each image, in the [-1, 1] scale of the images.

    The mean of the result over a test set is the paper's MSE (table 1).

    Args:
        x: images in [-1, 1], (B, C, H, W).
        y: images to compare with, in [-1, 1], (B, C, H, W).

    Returns:
        One error for each image, (B,).
    """
    if x.shape != y.shape or x.ndim < 2 or x.numel() == 0:
        raise BadInput(
            "x and y must be images of one shape (B, C, H, W), "
            f"got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return (x - y).square().flatten(1).mean(1)


def psnr(x: Tensor, y: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in decibels: `10 log10(2^2 / mse)`.

    The peak is 2, the width of the range [-1, 1]; equal images have infinite PSNR.

    Args:
        x: images in [-1, 1], (B, C, H, W).
        y: images to compare with, in [-1, 1], (B, C, H, W).

    Returns:
        One value for each image, (B,).
    """
    return 10 * torch.log10(4 / mse(x, y))
