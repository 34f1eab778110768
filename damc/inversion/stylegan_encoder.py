"""The in-domain encoder: images to codes of a style-based decoder.

Zhu et al. 2020, "In-Domain GAN Inversion for Real Image Editing", with batch norm: a convolution,
then residual blocks that each halve the map, down to 4 x 4, then one dense layer to the codes of
all style layers. Keys of the state dict are the published ones.

The published network divides what its residual convolutions give by gain / sqrt(fan_in) and
multiplies it again, on the way to adding a bias. The factor cancels, and is left out here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.errors import BadInput
from damc.inversion.checkpoint import fill, read_checkpoint, size_of
from damc.inversion.stylegan import check_resolution
from damc.inversion.stylegan_layers import SLOPE, equalized
from damc.nets.mlp import check_positive

__all__ = ["StyleEncoder", "load_style_encoder", "style_encoder_from"]


class StyleEncoder(nn.Module):
    """Images `(B, C, H, W)` in [-1, 1] to flattened codes `(B, layers * style)`.

    The defaults are the published ones, for 14 x 512 codes.

    Args:
        resolution: height and width of the images, a power of two from 8 to 1024.
        channels: channels of the images.
        style: size of the code of one layer.
        base: channels of the first maps; every block doubles them.
        widest: the largest number of channels.

    >>> encoder = StyleEncoder(16, style=8, base=4, widest=8).eval()
    >>> encoder(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 48])
    """

    def __init__(
        self,
        resolution: int = 256,
        channels: int = 3,
        *,
        style: int = 512,
        base: int = 64,
        widest: int = 1024,
    ) -> None:
        super().__init__()
        check_resolution(resolution)
        check_positive(channels=channels, style=style, base=base, widest=widest)
        self.shape = (channels, resolution, resolution)
        self.halvings = resolution.bit_length() - 3
        self.block0: nn.Module = FirstBlock(channels, base)
        inputs = base
        for i in range(1, self.halvings + 1):
            outputs = min(inputs * 2, widest)
            self.add_module(f"block{i}", ResidualBlock(inputs, outputs))
            inputs = outputs
        codes = 2 * (self.halvings + 1) * style
        self.add_module(f"block{self.halvings + 1}", LastBlock(inputs * 16, codes))

    def forward(self, x: Tensor) -> Tensor:
        """Flattened codes `(B, layers * style)` of images `x: (B, C, H, W)`."""
        if x.shape[1:] != self.shape:
            c, h, w = self.shape
            raise BadInput(f"images must have shape (B, {c}, {h}, {w}), got {tuple(x.shape)}")
        x = self.block0(x)
        for i in range(1, self.halvings + 1):
            x = self.get_submodule(f"block{i}")(F.avg_pool2d(x, 2))
        codes: Tensor = self.get_submodule(f"block{self.halvings + 1}")(x)
        return codes


class ShiftNorm(nn.Module):
    """Batch norm that learns a shift but no scale: its weight stays what it is, 1 at the start."""

    def __init__(self, channels: int, flat: bool = False) -> None:
        super().__init__()
        kind = nn.BatchNorm1d if flat else nn.BatchNorm2d
        self.bn = kind(channels, eps=1e-5, momentum=0.1)
        self.bn.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps, or vectors, of the shape of `x`."""
        normed: Tensor = self.bn(x)
        return normed


class FirstBlock(nn.Module):
    """A 3x3 convolution, batch norm, LeakyReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn = ShiftNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, outputs, H, W)` of maps `x: (B, inputs, H, W)`."""
        return F.leaky_relu(self.bn(self.conv(x)), SLOPE)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where widths differ."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        hidden = min(inputs, outputs)
        self.conv: nn.Module | None = None
        if inputs != outputs:
            self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
            self.bn = ShiftNorm(outputs)
        self.conv1 = nn.Conv2d(inputs, hidden, 3, padding=1, bias=False)
        self.wscale1 = nn.ParameterDict({"bias": torch.zeros(hidden)})
        self.bn1 = ShiftNorm(hidden)
        self.conv2 = nn.Conv2d(hidden, outputs, 3, padding=1, bias=False)
        self.wscale2 = nn.ParameterDict({"bias": torch.zeros(outputs)})
        self.bn2 = ShiftNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, outputs, H, W)` of maps `x: (B, inputs, H, W)`."""
        shortcut = x if self.conv is None else F.leaky_relu(self.bn(self.conv(x)), SLOPE)
        y = self.conv1(x) + self.wscale1["bias"].view(-1, 1, 1)
        y = F.leaky_relu(self.bn1(y), SLOPE)
        y = self.conv2(y) + self.wscale2["bias"].view(-1, 1, 1)
        return F.leaky_relu(self.bn2(y), SLOPE) + shortcut


class LastBlock(nn.Module):
    """One equalized dense layer, without bias, and batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.scale = equalized(inputs, gain=1.0)
        self.fc = nn.ParameterDict({"weight": torch.randn(outputs, inputs)})
        self.bn = ShiftNorm(outputs, flat=True)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors `(B, outputs)` of maps `x: (B, C, H, W)` with `inputs` numbers in all."""
        codes: Tensor = self.bn(F.linear(x.flatten(1), self.fc["weight"]) * self.scale)
        return codes


def load_style_encoder(path: str | Path) -> StyleEncoder:
    """An encoder from a published `.pth` file or a `.safetensors` file, in evaluation mode."""
    return style_encoder_from(read_checkpoint(path), str(path))


def style_encoder_from(state: Mapping[str, Tensor], source: str) -> StyleEncoder:
    """An encoder with these tensors; `source` is their name in error messages."""
    sizes = _sizes(state)
    with torch.device("meta"):
        encoder = StyleEncoder(**sizes)
    fill(encoder, state, source, f"the in-domain encoder of {sizes['resolution']} pixels")
    return encoder.eval()


def _sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `StyleEncoder` by the shapes of these tensors, which are not checked."""
    blocks = [int(n) for key in state for n in re.findall(r"^block(\d{1,2})\.", key)]
    last = min(max(max(blocks, default=7), 2), 9)
    widths = [
        size_of(
            state,
            1,
            (f"block{i}.conv2.weight", 0),
            (f"block{i}.wscale2.bias", 0),
            (f"block{i}.bn2.bn.bias", 0),
        )
        for i in range(1, last)
    ]
    codes = [f"block{last}.{name}" for name in ("fc.weight", "bn.bn.weight", "bn.bn.bias")]
    first = [f"block0.{name}" for name in ("conv.weight", "bn.bn.weight", "bn.bn.bias")]
    return {
        "resolution": 2 ** (last + 1),
        "channels": size_of(state, 3, (first[0], 1)),
        "style": max(size_of(state, 1024 * last, *((key, 0) for key in codes)) // (2 * last), 1),
        "base": size_of(state, 64, *((key, 0) for key in first)),
        "widest": max(widths),
    }
