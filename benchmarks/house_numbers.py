"""`python -m benchmarks.house_numbers OUT --data-root DIR`: made-up house numbers, to choose on.

SVHN is reported on, so nothing may be chosen on it. These images resemble it: a digit of MNIST,
often with parts of one or two neighbors, in one color on a strongly blurred image of CIFAR-10. OUT
gets train.npy, 5,083 images as the part of SVHN has, and unseen.npy, 3,000 of the test images.
`damc train svhn-small --data OUT/train.npy` trains on them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from damc.data import Images, load_images

_APART = 18  # pixels from one digit to the next
_NEIGHBOR = 0.6  # how often there is one, on either side


def blur(x: Tensor, width: float) -> Tensor:
    """Images ``(N, C, H, W)`` blurred by a Gaussian of that standard deviation, in pixels."""
    reach, c = int(3 * width) + 1, x.shape[1]
    kernel = torch.exp(-(torch.arange(-reach, reach + 1).float() ** 2) / (2 * width**2))
    kernel /= kernel.sum()
    x = functional.pad(x, (reach,) * 4, mode="replicate")
    x = functional.conv2d(x, kernel.view(1, 1, 1, -1).expand(c, 1, 1, -1), groups=c)
    return functional.conv2d(x, kernel.view(1, 1, -1, 1).expand(c, 1, -1, 1), groups=c)


def house_numbers(n: int, digits: Images, photographs: Images, g: torch.Generator) -> Tensor:
    """n images ``(n, 3, 32, 32)``, uint8."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    ground = blur(photographs.batch(torch.arange(n)), 5.0)
    ground = ground - ground.mean((1, 2, 3), keepdim=True)
    color = uniform(n, 1, 1, 1) * 1.4 - 0.7 + 0.12 * normal(n, 3, 1, 1)
    order = torch.randperm(len(digits), generator=g)
    middle, left, right = (
        (digits.batch(order[(torch.arange(n) + k * n) % len(order)]) + 1) / 2 for k in range(3)
    )
    scale = 0.85 + 0.3 * uniform(n)
    present = (uniform(n, 2) < _NEIGHBOR).float().view(n, 2, 1, 1)
    row = torch.zeros(n, 1, 28, 28 + 2 * _APART)
    for at, digit in (
        (_APART, middle),
        (0, left * present[:, :1]),
        (2 * _APART, right * present[:, 1:]),
    ):
        place = row[..., at : at + 28]
        place.copy_(torch.maximum(place, digit))
    right_by, down_by, turn = 0.02 * normal(n), 0.06 * normal(n), 0.08 * normal(n)
    ink = blur(_placed(row, scale, right_by, down_by, turn), 0.8)
    contrast = torch.where(uniform(n, 1, 1, 1) < 0.5, -1.0, 1.0) * (0.4 + 0.6 * uniform(n, 1, 1, 1))
    paint = color + contrast + 0.15 * normal(n, 3, 1, 1)
    x = (color + 0.8 * ground) * (1 - ink) + paint * ink + 0.01 * normal(n, 3, 32, 32)
    return ((x.clamp(-1, 1) + 1) * 127.5).round().byte()


def _placed(row: Tensor, scale: Tensor, right_by: Tensor, down_by: Tensor, turn: Tensor) -> Tensor:
    """The middle of a row of digits, scaled, moved and turned, ``(N, 1, 32, 32)``."""
    line = torch.linspace(-1, 1, 32)
    y, x = torch.meshgrid(line, line, indexing="ij")
    cos, sin, zoom, right_by, down_by = (
        v.view(-1, 1, 1) for v in (turn.cos(), turn.sin(), 0.95 / scale, right_by, down_by)
    )
    across = (x * cos - y * sin) * zoom * row.shape[2] / row.shape[3] + right_by
    down = (x * sin + y * cos) * zoom + down_by
    grid = torch.stack([across, down], -1)
    return functional.grid_sample(row, grid, padding_mode="zeros", align_corners=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the two files")
    parser.add_argument("--data-root", type=Path, help="folder of MNIST and CIFAR-10")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(0)
    for name, split, n in (("train", "train", 5083), ("unseen", "test", 3000)):
        digits = load_images("mnist", root=options.data_root, split=split)
        photographs = load_images("cifar10", root=options.data_root, split=split)
        np.save(options.out / f"{name}.npy", house_numbers(n, digits, photographs, g).numpy())
        print(f"{options.out / name}.npy: {n:,} images")


if __name__ == "__main__":
    main()
