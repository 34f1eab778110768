"""The critic of a style-based decoder: images to one number, higher where they look real.

The residual form of Karras et al. 2020, "Analyzing and Improving the Image Quality of StyleGAN",
with equalized weights like the decoder's, and a statistic of the batch near the end (Karras et al.
2018) that exposes mode collapse.
"""

from __future__ import annotations

__all__ = ["Discriminator", "EqualConv", "batch_spread", "halved"]

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.errors import BadInput
from damc.inversion.stylegan import check_resolution
from damc.inversion.stylegan_layers import SLOPE, EqualDense, equalized
from damc.nets.mlp import check_positive


class Discriminator(nn.Module):
    """Images to logits: a residual block for each halving down to 4x4, then two dense layers.

    Args:
        resolution: height and width of the images, a power of two from 8 to 1024.
        channels: channels of the images.
        base: width of the maps: at size s they have `min(base // s, widest)` channels.
        widest: the largest number of channels.
        group: how many images of a batch are compared with each other (`batch_spread`).

    >>> critic = Discriminator(16, channels=1, base=128, widest=16)
    >>> critic(torch.zeros(4, 1, 16, 16)).shape
    torch.Size([4])
    """

    def __init__(
        self, resolution: int, channels: int = 3, *, base: int, widest: int, group: int = 4
    ) -> None:
        super().__init__()
        check_resolution(resolution)
        check_positive(channels=channels, base=base, widest=widest, group=group)
        if base < resolution:
            raise BadInput(f"base must be at least the resolution, {resolution}, got {base}")
        self.shape, self.group = (channels, resolution, resolution), group
        sizes = [2**n for n in range(resolution.bit_length() - 1, 1, -1)]
        widths = [min(base // size, widest) for size in sizes]
        self.entry = EqualConv(channels, widths[0], 1)
        self.blocks = nn.Sequential(*(Halving(*pair) for pair in itertools.pairwise(widths)))
        self.conv = EqualConv(widths[-1] + 1, widths[-1], 3)
        self.dense = EqualDense(16 * widths[-1], widths[-1])
        self.logit = EqualDense(widths[-1], 1, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `(B,)` of images `x: (B, C, H, W)` in [-1, 1]; positive means real."""
        if x.shape[1:] != self.shape:
            raise BadInput(f"images must have shape (B, *{self.shape}), got {tuple(x.shape)}")
        h = self.blocks(F.leaky_relu(self.entry(x), SLOPE))
        h = F.leaky_relu(self.conv(batch_spread(h, self.group)), SLOPE)
        h = F.leaky_relu(self.dense(h.flatten(1)), SLOPE)
        logits: Tensor = self.logit(h)
        return logits.squeeze(1)


class Halving(nn.Module):
    """A residual block that halves the maps; both ways together keep the variance."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = EqualConv(inputs, inputs, 3)
        self.second = EqualConv(inputs, outputs, 3)
        self.skip = EqualConv(inputs, outputs, 1, gain=1.0, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, outputs, H / 2, W / 2)` of `x: (B, inputs, H, W)`."""
        # Halving before the second convolution costs a quarter of halving after it.
        h = F.leaky_relu(self.second(halved(F.leaky_relu(self.first(x), SLOPE))), SLOPE)
        y: Tensor = (h + self.skip(halved(x))) / math.sqrt(2)
        return y


class EqualConv(nn.Module):
    """A convolution that keeps the size, with equalized weights (see `stylegan_layers`).

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        size: of the kernel, odd.
        gain: standard deviation of the output at the start, for inputs of variance 1.
        bias: whether every channel has one.
    """

    def __init__(
        self, inputs: int, outputs: int, size: int, gain: float = math.sqrt(2), bias: bool = True
    ) -> None:
        super().__init__()
        self.scale, self.padding = equalized(inputs * size**2, gain), size // 2
        self.weight = nn.Parameter(torch.randn(outputs, inputs, size, size))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, outputs, H, W)` of `x: (B, inputs, H, W)`."""
        return F.conv2d(x, self.weight * self.scale, self.bias, padding=self.padding)


def halved(x: Tensor) -> Tensor:
    """Means of 2x2 pixels: maps `(B, C, H / 2, W / 2)` of `x: (B, C, H, W)`."""
    # On a CPU several times faster than average pooling, forward and back.
    x = x[..., ::2, :] + x[..., 1::2, :]
    return (x[..., ::2] + x[..., 1::2]) / 4


def batch_spread(x: Tensor, group: int) -> Tensor:
    """Maps with one more channel that holds how much the images of a group differ.

    For each group of `group` images, the standard deviation over the group at every pixel and
    channel, averaged into one number. A batch that `group` does not divide is one group.

    Args:
        x: maps, `(B, C, H, W)`; the result is `(B, C + 1, H, W)`.
        group: images in a group; i, i + B / group, i + 2 B / group, ... belong together.
    """
    n = group if len(x) % group == 0 else len(x)
    groups = x.reshape(n, -1, *x.shape[1:])
    # The small number keeps the gradient of the root finite where all images are equal.
    spread = (groups.var(0, correction=0) + 1e-8).sqrt().mean((1, 2, 3))
    channel = spread.repeat(n).view(-1, 1, 1, 1).expand(-1, 1, *x.shape[2:])
    return torch.cat([x, channel], 1)
