"""Where an image departs from what its surroundings predict: a map, for images of any size.

Normal images are taken for a stationary Gaussian field. In a window of it, the block in the middle
is predicted from the pixels around by linear regression, and the surprise is the squared error of
the prediction in units of its covariance,

    s(block) = e' Cov(e)^-1 e / dim(e),     e = block - E[block | surroundings],

which is 1 on average for normal images. It is one convolution with a few filters.
"""

from __future__ import annotations

__all__ = ["Surprise", "sample_windows"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from damc.errors import BadInput

_WINDOWS = 50  # of an image, from which the covariance is estimated
_BLOCK = 2  # pixels a side that are predicted together
_RIDGE = 1e-3  # of the mean variance, added to every pixel's


@dataclass(frozen=True)
class Surprise:
    """Filters whose outputs are whitened errors of prediction.

    Attributes:
        filters: ``(C b b, C, k, k)``, for blocks of b pixels a side in windows of k.
        bias: ``(C b b,)``.
    """

    filters: Tensor
    bias: Tensor

    @classmethod
    def of(cls, windows: Tensor, channels: int) -> Surprise:
        """From windows of normal images, ``(N, C k k)``."""
        w = windows.double()
        k = math.isqrt(w.shape[1] // channels)
        reach = (k - _BLOCK) // 2
        mean = w.mean(0)
        covariance = (w - mean).T @ (w - mean) / len(w)
        ridge = _RIDGE * covariance.diagonal().mean() + 1e-12
        precision = torch.linalg.inv(covariance + ridge * torch.eye(len(mean), dtype=mean.dtype))
        middle = torch.zeros(channels, k, k, dtype=torch.bool)
        middle[:, reach : reach + _BLOCK, reach : reach + _BLOCK] = True
        inner = middle.flatten().nonzero()[:, 0]
        # With the precision K of a window, e = K_bb^-1 K_b. (x - mean), and Cov(e) = K_bb^-1.
        root = torch.linalg.cholesky(torch.linalg.inv(precision[inner][:, inner])).T
        whitened = root @ precision[inner]
        bias = -(whitened @ mean)
        return cls(whitened.float().view(-1, channels, k, k), bias.float())

    def map(self, x: Tensor, smooth: int = 5) -> Tensor:
        """The log surprise at every pixel of x ``(B, C, H, W)``, ``(B, H, W)``.

        Args:
            x: images.
            smooth: pixels a side that it is averaged over.
        """
        # Every block that a pixel is in.
        edge = (self.filters.shape[2] - _BLOCK) // 2 + _BLOCK - 1
        padded = functional.pad(x, (edge, edge, edge, edge), mode="reflect")
        errors = functional.conv2d(padded, self.filters, self.bias)
        found = errors.square().mean(1, keepdim=True)
        found = (functional.avg_pool2d(found, _BLOCK, stride=1) + 1e-3).log()
        reach = smooth // 2
        found = functional.pad(found, (reach, reach, reach, reach), mode="replicate")
        return functional.avg_pool2d(found, 2 * reach + 1, stride=1)[:, 0]


def sample_windows(x: Tensor, generator: torch.Generator) -> Tensor:
    """Some windows of every image ``(B, C, H, W)``, ``(N, C k k)``; edges are mirrored.

    The windows are 8 pixels a side, or less in images below 7; those must have 3 at least.
    """
    side = min(x.shape[2:])
    if side < 3:
        raise BadInput(f"images must be at least 3 pixels a side, got {side}")
    reach = min(3, (side - 1) // 2)
    k = 2 * reach + _BLOCK
    padded = functional.pad(x, (reach, reach, reach, reach), mode="reflect")
    h, w = padded.shape[2] - k + 1, padded.shape[3] - k + 1
    count = min(_WINDOWS, h * w)
    row = torch.randint(h, (len(x), count), generator=generator)
    column = torch.randint(w, (len(x), count), generator=generator)
    step = torch.arange(k)
    image = torch.arange(len(x))[:, None, None, None]
    rows = (row[..., None] + step)[..., None]
    columns = (column[..., None] + step)[:, :, None]
    cut = padded.permute(0, 2, 3, 1)[image, rows, columns]  # (B, count, k, k, C)
    return cut.permute(0, 1, 4, 2, 3).reshape(len(x) * count, -1)
