"""The layers of a style-based decoder (Karras et al. 2019, "A Style-Based Generator Architecture").

Parameters are kept raw and scaled as they are used (the equalized learning rate of Karras et al.
2018): a layer uses `weight * gain / sqrt(fan_in) * m` and `bias * m`. Raw weights
start as N(0, 1 / m^2), so that every layer starts at variance gain^2 and an optimizer moves all of
them at the same rate. Names of parameters are those of the published checkpoints.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "SLOPE",
    "Blur",
    "EqualDense",
    "Epilogue",
    "StyleConstant",
    "StyleConv",
    "StyleUp",
    "ToImage",
    "equalized",
    "fused_kernel",
    "pixel_norm",
]

SLOPE = 0.2
"""Negative slope of every LeakyReLU here."""

_EPS = 1e-8


def equalized(fan_in: int, gain: float = math.sqrt(2), multiplier: float = 1.0) -> float:
    """What a raw weight is multiplied by: gain / sqrt(fan_in) * multiplier."""
    return gain / math.sqrt(fan_in) * multiplier


def pixel_norm(z: Tensor) -> Tensor:
    """`z: (B, d)` divided by its root mean square over the d entries."""
    return z / (z.square().mean(1, keepdim=True) + _EPS).sqrt()


def fused_kernel(weight: Tensor) -> Tensor:
    """The 4x4 kernel, (in, out, 4, 4), of a 3x3 weight (3, 3, in, out) after a doubling.

    A transposed convolution with it (stride 2, padding 1) is the same as doubling every pixel and
    convolving with the weight. Convolving in the textbook's sense: with the kernel turned around,
    unlike the layers below `fused_from`, whose `conv2d` does not turn it.
    """
    wide = F.pad(weight, (0, 0, 0, 0, 1, 1, 1, 1))
    kernel = wide[1:, 1:] + wide[:-1, 1:] + wide[1:, :-1] + wide[:-1, :-1]
    return kernel.permute(2, 3, 0, 1)


class EqualDense(nn.Module):
    """A fully connected layer with equalized weights.

    Args:
        inputs: size of what comes in.
        outputs: size of what goes out.
        gain: standard deviation of the output at the start, for inputs of variance 1.
        multiplier: m, how fast this layer learns next to the others.
    """

    def __init__(
        self, inputs: int, outputs: int, gain: float = math.sqrt(2), multiplier: float = 1.0
    ) -> None:
        super().__init__()
        self.scale = equalized(inputs, gain, multiplier)
        self.multiplier = multiplier
        self.fc = nn.ParameterDict({"weight": torch.randn(outputs, inputs) / multiplier})
        self.wscale = nn.ParameterDict({"bias": torch.zeros(outputs)})

    def forward(self, x: Tensor) -> Tensor:
        """`(B, outputs)` of `x: (B, inputs)`."""
        return F.linear(x, self.fc["weight"] * self.scale, self.wscale["bias"] * self.multiplier)


class Blur(nn.Module):
    """Every channel smoothed with the kernel [1, 2, 1] x [1, 2, 1] / 16; zeros outside the map."""

    kernel: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        row = torch.tensor([0.25, 0.5, 0.25])
        self.register_buffer("kernel", torch.outer(row, row).repeat(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, channels, H, W)` of maps of the same shape."""
        return F.conv2d(x, self.kernel, padding=1, groups=len(self.kernel))


class Epilogue(nn.Module):
    """What follows every convolution: noise, bias, LeakyReLU, instance norm, style.

    Args:
        size: height and width of the maps.
        channels: their channels.
        style: size of a style code w.
    """

    def __init__(self, size: int, channels: int, style: int) -> None:
        super().__init__()
        self.apply_noise = Noise(size, channels)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.style_mod = StyleModulation(channels, style)

    def forward(self, x: Tensor, w: Tensor, noise: Tensor | None = None) -> Tensor:
        """Maps of the shape of `x: (B, channels, size, size)`, for styles `w: (B, style)`."""
        x = self.apply_noise(x, noise) + self.bias.view(-1, 1, 1)
        x = F.instance_norm(F.leaky_relu(x, SLOPE), eps=_EPS)
        styled: Tensor = self.style_mod(x, w)
        return styled


class Noise(nn.Module):
    """One map of noise for all channels, each taking its own amount, 0 at the start.

    The noise belongs to the decoder, so that an image is a function of its codes alone; another
    one, `(B, 1, size, size)`, may be given for a single pass.
    """

    noise: Tensor

    def __init__(self, size: int, channels: int) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(1, 1, size, size))
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Maps `x: (B, channels, size, size)` with the noise in them."""
        return x + (self.noise if noise is None else noise) * self.weight.view(-1, 1, 1)


class StyleModulation(nn.Module):
    """A scale and a shift for every channel, both linear in the style code."""

    def __init__(self, channels: int, style: int) -> None:
        super().__init__()
        self.dense = EqualDense(style, 2 * channels, gain=1.0)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """`x * (scale + 1) + shift`, for maps `x: (B, C, H, W)` and styles `w: (B, style)`."""
        scale, shift = self.dense(w)[..., None, None].chunk(2, dim=1)
        styled: Tensor = x * (scale + 1) + shift
        return styled


class StyleConstant(nn.Module):
    """The first layer: a learned map that is the same for every image, styled."""

    def __init__(self, size: int, channels: int, style: int) -> None:
        super().__init__()
        self.const = nn.Parameter(torch.ones(1, channels, size, size))
        self.epilogue = Epilogue(size, channels, style)

    def forward(self, w: Tensor, noise: Tensor | None = None) -> Tensor:
        """Maps `(B, channels, size, size)` of styles `w: (B, style)`."""
        x: Tensor = self.epilogue(self.const, w, noise)
        return x


class StyleConv(nn.Module):
    """A 3x3 convolution that keeps the size, styled."""

    def __init__(self, size: int, channels: int, style: int) -> None:
        super().__init__()
        self.scale = equalized(9 * channels)
        self.conv = nn.ParameterDict({"weight": torch.randn(channels, channels, 3, 3)})
        self.epilogue = Epilogue(size, channels, style)

    def forward(self, x: Tensor, w: Tensor, noise: Tensor | None = None) -> Tensor:
        """Maps of the shape of `x: (B, channels, size, size)`, for styles `w: (B, style)`."""
        x = F.conv2d(x, self.conv["weight"] * self.scale, padding=1)
        x = self.epilogue(x, w, noise)
        return x


class StyleUp(nn.Module):
    """A layer that doubles the size: upsample and convolve, blur, epilogue.

    Args:
        size: height and width of what goes out.
        inputs: channels that come in.
        outputs: channels that go out.
        style: size of a style code w.
        fused: do the doubling and the convolution as one transposed convolution, which is faster
            for large maps and stores its weight as (3, 3, in, out).
    """

    def __init__(self, size: int, inputs: int, outputs: int, style: int, fused: bool) -> None:
        super().__init__()
        self.scale = equalized(9 * inputs)
        self.fused = fused
        if fused:
            self.weight = nn.Parameter(torch.randn(3, 3, inputs, outputs))
        else:
            self.conv = nn.ParameterDict({"weight": torch.randn(outputs, inputs, 3, 3)})
        self.blur = Blur(outputs)
        self.epilogue = Epilogue(size, outputs, style)

    def forward(self, x: Tensor, w: Tensor, noise: Tensor | None = None) -> Tensor:
        """Maps `(B, outputs, size, size)` of `x: (B, inputs, size / 2, size / 2)`."""
        if self.fused:
            kernel = fused_kernel(self.weight * self.scale)
            x = F.conv_transpose2d(x, kernel, stride=2, padding=1)
        else:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = F.conv2d(x, self.conv["weight"] * self.scale, padding=1)
        x = self.epilogue(self.blur(x), w, noise)
        return x


class ToImage(nn.Module):
    """A 1x1 convolution from maps to colors, with gain 1."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.scale = equalized(inputs, gain=1.0)
        self.conv = nn.ParameterDict({"weight": torch.randn(channels, inputs, 1, 1)})
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Images `(B, channels, H, W)`, not yet bounded, of maps `x: (B, inputs, H, W)`."""
        return F.conv2d(x, self.conv["weight"] * self.scale, self.bias)
