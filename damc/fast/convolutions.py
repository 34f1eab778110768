"""Convolutions between two changes of their weights: maps, and gradients at them pulled back.

They are rules of `damc.fast.gradients`. The adjoint of a convolution is a convolution, so no graph
is needed. Maps lie in memory channels last, which a CPU convolves up to twice as fast; and where a
transposed convolution has a kernel larger than its maps, or very few outputs, it is written as the
matrix product that it is: 1.5 to 4 times as fast there, and slower anywhere else.
"""

from __future__ import annotations

__all__ = ["convolution", "pixel_shuffle", "transposed_convolution"]

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from damc.fast.gradients import Evaluation, Pull

_FEW = 16  # outputs that leave a vector register half empty


def convolution(layer: nn.Conv2d) -> Evaluation | None:
    """A convolution of stride 1; None for all others, which autograd may do."""
    even = layer.padding == "same" and any(k % 2 == 0 for k in layer.kernel_size)
    if layer.stride != (1, 1) or even or not _plain(layer):
        return None
    weight, bias = _channels_last(layer.weight), _detached(layer.bias)
    turned = _channels_last(weight.transpose(0, 1).flip(2, 3))
    high, wide = layer.kernel_size
    pad = _padding(layer)
    back = (high - 1 - pad[0], wide - 1 - pad[1])
    if min(back) < 0:
        return None

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        y = F.conv2d(h, weight, bias, padding=pad)
        return y, lambda grad: F.conv2d(grad, turned, padding=back)

    return evaluate


def transposed_convolution(layer: nn.ConvTranspose2d) -> Evaluation | None:
    """A transposed convolution, whose adjoint is a convolution with the same weights."""
    if not _plain(layer):
        return None
    weight, bias = _channels_last(layer.weight), _detached(layer.bias)
    stride, pad, extra = layer.stride, _padding(layer), layer.output_padding
    product = _Product(layer) if weight.is_cpu and extra == (0, 0) else None

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        if product is not None and product.pays(h):
            return product(h)
        y = F.conv_transpose2d(h, weight, bias, stride, pad, extra)
        return y, lambda grad: F.conv2d(grad, weight, None, stride, pad)

    return evaluate


def pixel_shuffle(layer: nn.PixelShuffle) -> Evaluation:
    """Channels laid out as pixels, and back."""
    r = layer.upscale_factor

    def evaluate(h: Tensor) -> tuple[Tensor, Pull]:
        return F.pixel_shuffle(h, r), lambda grad: F.pixel_unshuffle(grad, r)

    return evaluate


class _Product:
    """A transposed convolution as one matrix product, whose columns are the kernel's taps.

    Every tap's share is then added at its places of the output; the way back gathers the gradients
    from there.
    """

    def __init__(self, layer: nn.ConvTranspose2d) -> None:
        self.inputs, self.outputs = layer.in_channels, layer.out_channels
        self.kernel, self.stride, self.pad = layer.kernel_size, layer.stride, _padding(layer)
        self.bias = _detached(layer.bias)
        # (inputs, taps down, taps across, outputs), flat: what rows of channels are multiplied by.
        self.weight = layer.weight.detach().permute(0, 2, 3, 1).flatten(1).contiguous()

    def pays(self, h: Tensor) -> bool:
        """Whether it is faster than a convolution: few outputs, or more kernel than map."""
        return self.outputs < _FEW or h[:, 0].numel() <= 4 * self.inputs

    def __call__(self, h: Tensor) -> tuple[Tensor, Pull]:
        (n, _, high, wide), (down, across), (sv, sh) = h.shape, self.kernel, self.stride
        rows = h.permute(0, 2, 3, 1).reshape(-1, self.inputs)
        taps = (rows @ self.weight).view(n, high, wide, down, across, self.outputs)
        size = (n, sv * (high - 1) + down, sh * (wide - 1) + across, self.outputs)
        y = h.new_zeros(size) if self.bias is None else self.bias.expand(size).contiguous()
        for a in range(down):
            for b in range(across):
                y[:, a : a + sv * high : sv, b : b + sh * wide : sh] += taps[:, :, :, a, b]
        top, left = self.pad
        y = y[:, top : size[1] - top, left : size[2] - left].permute(0, 3, 1, 2)
        return y, lambda grad: self.pull(grad).view(n, high, wide, -1).permute(0, 3, 1, 2)

    def pull(self, grad: Tensor) -> Tensor:
        """Gradients at the maps' pixels, one row for each, from those at the output."""
        (down, across), (sv, sh), (top, left) = self.kernel, self.stride, self.pad
        padded = F.pad(grad.permute(0, 2, 3, 1), (0, 0, left, left, top, top))
        patches = padded.unfold(1, down, sv).unfold(2, across, sh).permute(0, 1, 2, 4, 5, 3)
        return patches.reshape(-1, self.weight.shape[1]) @ self.weight.t()


def _plain(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"


def _padding(layer: nn.Conv2d | nn.ConvTranspose2d) -> tuple[int, int]:
    if isinstance(layer.padding, str):
        high, wide = layer.kernel_size
        return (0, 0) if layer.padding == "valid" else ((high - 1) // 2, (wide - 1) // 2)
    return layer.padding[0], layer.padding[1]


def _channels_last(weight: Tensor) -> Tensor:
    return weight.detach().contiguous(memory_format=torch.channels_last)


def _detached(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach()
