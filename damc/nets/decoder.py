"""Decoders g: latent points in, images in [-1, 1] out.

Every decoder of the paper (Yu et al. 2023, table of the generator networks) is a list of rows,
`DECODERS`, read by one builder, `conv_decoder`: transposed convolutions with bias and LeakyReLU,
tanh at the end, no normalization. For a CPU there are two lighter kinds: `mlp_decoder`, fully
connected, and `mlp_conv_decoder`, linear layers up to a small map and a few convolutions from there
(rows in `HYBRIDS`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.errors import BadInput
from damc.fast.gradients import Evaluation, Pull, is_plain, rule
from damc.nets.encoder import image_shape, pair
from damc.nets.mlp import activation_layer, check_positive, mlp

__all__ = [
    "DECODERS",
    "HYBRIDS",
    "UpLayer",
    "conv_decoder",
    "conv_decoder_for",
    "decoder_rows",
    "mlp_conv_decoder",
    "mlp_decoder",
]


@dataclass(frozen=True)
class UpLayer:
    """One layer of a decoder, which makes the map `stride` times larger.

    Args:
        channels: output channels, as a multiple of the builder's `width`; None in the last row,
            which has as many as the images.
        kernel: kernel size, or (vertical, horizontal). In the first row, which meets a single
            point, it is the size of the first map.
        stride: stride, or (vertical, horizontal).
        form: "transposed", a transposed convolution, whose kernel exceeds its stride by an even
            number; or "shuffle", a convolution of odd kernel at the low resolution that makes
            `stride ** 2` times the channels and lays them out as pixels (Shi et al. 2016).
    """

    channels: int | None
    kernel: int | tuple[int, int] = 1
    stride: int | tuple[int, int] = 1
    form: Literal["transposed", "shuffle"] = "transposed"


DECODERS: dict[str, tuple[UpLayer, ...]] = {
    "svhn": (UpLayer(8, 4), UpLayer(4, 4, 2), UpLayer(2, 4, 2), UpLayer(None, 4, 2)),
    "celeba64": (
        UpLayer(8, 4),
        *(UpLayer(channels, 4, 2) for channels in (4, 2, 1)),
        UpLayer(None, 4, 2),
    ),
    "cifar10": (UpLayer(8, 8), UpLayer(4, 4, 2), UpLayer(2, 4, 2), UpLayer(None, 3)),
    "celebahq256": (
        UpLayer(16, 4),
        *(UpLayer(channels, 4, 2) for channels in (8, 4, 4, 2, 1)),
        UpLayer(None, 4, 2),
    ),
    "mnist": (UpLayer(8, 7), UpLayer(4, 4, 2), UpLayer(2, 4, 2), UpLayer(None, 3)),
}
"""The paper's decoders, in multiples of `width` (its ngf: 128, and 64 for SVHN)."""

HYBRIDS: dict[str, tuple[UpLayer, ...]] = {
    "half": (UpLayer(1), UpLayer(None, 3, 2, "shuffle")),
    "quarter": (UpLayer(4), UpLayer(4, 3, 1, "shuffle"), UpLayer(None, 3, 4, "shuffle")),
    "stages": (UpLayer(4), UpLayer(2, 4, 2), UpLayer(None, 4, 2)),
    "eighth": (UpLayer(4), UpLayer(4, 3, 2, "shuffle"), UpLayer(None, 3, 4, "shuffle")),
    "sixteenth": (
        UpLayer(4),
        *(UpLayer(channels, 3, 2, "shuffle") for channels in (4, 2)),
        UpLayer(None, 3, 4, "shuffle"),
    ),
    "thirty-second": (
        UpLayer(4),
        *(UpLayer(channels, 3, 2, "shuffle") for channels in (4, 2, 1)),
        UpLayer(None, 3, 4, "shuffle"),
    ),
}
"""Rows for `mlp_conv_decoder`, in multiples of `width`; the first row is the map that the linear
layers make, whose sides are the named fraction of the image's (a quarter for "stages")."""


def conv_decoder(
    latent_dim: int,
    rows: Sequence[UpLayer],
    channels: int,
    width: int = 1,
    slope: float = 0.2,
    crop: tuple[int, int] | None = None,
) -> nn.Sequential:
    """A convolutional decoder from `z: (B, d)` to images `(B, C, H, W)` in [-1, 1].

    The image's size is the first row's kernel times the strides of the rest.

    Args:
        latent_dim: dimension d of z.
        rows: the layers, for instance `DECODERS["svhn"]`.
        channels: channels C of the images.
        width: what the rows' channels are multiplied by.
        slope: negative slope of LeakyReLU.
        crop: (H, W) to cut from the middle of the last map, if that is larger than the images.
    """
    check_positive(latent_dim=latent_dim, channels=channels, width=width)
    _check_rows(rows)
    size = pair(rows[0].kernel)
    outputs = width * (rows[0].channels or 1)
    stem = [FirstLayer(latent_dim, outputs, size), nn.LeakyReLU(slope)]
    return nn.Sequential(*stem, *_up_layers(outputs, size, rows[1:], channels, width, slope, crop))


def decoder_rows(shape: Sequence[int]) -> tuple[UpLayer, ...]:
    """Rows for images of any shape (C, H, W): a first map with sides of 4 to 8, then doublings.

    Where doublings cannot meet a side, the last map is larger than the images and is to be cropped.
    """
    _, *sides = image_shape(shape)
    doublings = [(side // 4).bit_length() - 1 for side in sides]
    first = tuple(math.ceil(side / 2**n) for side, n in zip(sides, doublings, strict=True))
    total = max(doublings)
    if total == 0:
        return UpLayer(1, (first[0], first[1])), UpLayer(None, 3)
    rows = [UpLayer(min(8, 2 ** (total - 1)), (first[0], first[1]))]
    for left in reversed(range(total)):
        # The side with fewer doublings to make waits, so that both reach full size together.
        stride = (1 + (doublings[0] > left), 1 + (doublings[1] > left))
        kernel = (2 + stride[0], 2 + stride[1])
        rows.append(UpLayer(min(8, 2 ** (left - 1)) if left else None, kernel, stride))
    return tuple(rows)


def conv_decoder_for(
    shape: Sequence[int], latent_dim: int, width: int = 64, slope: float = 0.2
) -> nn.Sequential:
    """A convolutional decoder for images of any shape (C, H, W) with H and W of 4 or more."""
    channels, high, wide = image_shape(shape)
    return conv_decoder(latent_dim, decoder_rows(shape), channels, width, slope, (high, wide))


def mlp_decoder(
    latent_dim: int,
    shape: Sequence[int],
    hidden: Sequence[int] = (256, 512),
    activation: str = "lrelu",
    last: str | None = "tanh",
) -> nn.Sequential:
    """A fully connected decoder from `z: (B, d)` to `(B, *shape)`, images or plain vectors.

    Args:
        latent_dim: dimension d of z.
        shape: shape of one datum: (C, H, W), or (n,) for vectors.
        hidden: sizes of the hidden layers.
        activation: name of the activation between layers.
        last: name of the activation at the end; None leaves the output unbounded, for vectors.
    """
    if not shape:
        raise BadInput("shape must have at least one dimension, got ()")
    check_positive(latent_dim=latent_dim, shape=shape, hidden=hidden)
    net = mlp((latent_dim, *hidden, math.prod(shape)), activation, last)
    return nn.Sequential(*net, nn.Unflatten(1, tuple(shape)))


def mlp_conv_decoder(
    latent_dim: int,
    shape: Sequence[int],
    rows: Sequence[UpLayer] = HYBRIDS["quarter"],
    hidden: Sequence[int] = (256,),
    width: int = 16,
    slope: float = 0.2,
) -> nn.Sequential:
    """Linear layers from `z: (B, d)` to a small map, convolutions from there to `(B, C, H, W)`.

    Most of the work is in matrix products at low resolution, which a CPU does well, and the last
    layers still know that neighboring pixels belong together.

    Args:
        latent_dim: dimension d of z.
        shape: (C, H, W) of the images, of any size.
        rows: the map's channels, then the layers, for instance `HYBRIDS["quarter"]`; the map's size
            is the image's divided by the strides (rounded up, and the image cropped).
        hidden: sizes of the hidden linear layers.
        width: what the rows' channels are multiplied by.
        slope: negative slope of LeakyReLU.
    """
    channels, high, wide = image_shape(shape)
    check_positive(latent_dim=latent_dim, hidden=hidden, width=width)
    _check_rows(rows)
    strides = [pair(row.stride) for row in rows[1:]]
    size = (
        math.ceil(high / math.prod(vertical for vertical, _ in strides)),
        math.ceil(wide / math.prod(horizontal for _, horizontal in strides)),
    )
    inputs = width * (rows[0].channels or 1)
    stem = mlp((latent_dim, *hidden, inputs * size[0] * size[1]), last="lrelu", slope=slope)
    layers = _up_layers(inputs, size, rows[1:], channels, width, slope, (high, wide))
    return nn.Sequential(*stem, nn.Unflatten(1, (inputs, *size)), *layers)


class FirstLayer(nn.Module):
    """A transposed convolution of a single point, computed as the matrix product that it is.

    The parameters are those of the `nn.ConvTranspose2d` it holds, bias for each channel included;
    on a CPU the product is 4 to 9 times faster than the convolution.
    """

    def __init__(self, inputs: int, outputs: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(inputs, outputs, size)

    def forward(self, z: Tensor) -> Tensor:
        """Maps `(B, outputs, *size)` of points `z: (B, inputs)`."""
        weight, bias = self.conv.weight, self.conv.bias
        assert bias is not None
        pixels = bias.repeat_interleave(weight[0, 0].numel())
        return torch.addmm(pixels, z, weight.flatten(1)).view(-1, *weight.shape[1:])


@rule(FirstLayer)
def _first_layer(layer: FirstLayer) -> Evaluation | None:
    """Maps that lie in memory channels last, and gradients at them pulled back to z."""
    if type(layer.conv) is not nn.ConvTranspose2d or not is_plain(layer.conv):
        return None
    weight, bias = layer.conv.weight.detach(), layer.conv.bias
    assert bias is not None
    inputs, outputs, high, wide = weight.shape
    matrix = weight.permute(0, 2, 3, 1).reshape(inputs, -1)
    pixels = bias.detach().repeat(high * wide)

    def evaluate(z: Tensor) -> tuple[Tensor, Pull]:
        maps = torch.addmm(pixels, z, matrix).view(-1, high, wide, outputs)
        return maps.permute(
            0, 3, 1, 2
        ), lambda grad: grad.permute(0, 2, 3, 1).flatten(1) @ matrix.t()

    return evaluate


class Crop(nn.Module):
    """The middle `size` of a larger map."""

    def __init__(self, size: tuple[int, int]) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Maps `(B, C, *size)` of maps `x: (B, C, H, W)`."""
        high, wide = self.size
        top, left = (x.shape[-2] - high) // 2, (x.shape[-1] - wide) // 2
        return x[..., top : top + high, left : left + wide]

    def extra_repr(self) -> str:
        return f"size={self.size}"


@rule(Crop)
def _crop(layer: Crop) -> Evaluation:
    """The gradient outside the middle is zero."""
    high, wide = layer.size

    def evaluate(x: Tensor) -> tuple[Tensor, Pull]:
        rest = (x.shape[-2] - high, x.shape[-1] - wide)
        top, left = rest[0] // 2, rest[1] // 2
        around = (left, rest[1] - left, top, rest[0] - top)
        return layer(x), lambda grad: F.pad(grad, around)

    return evaluate


def _up_layers(
    inputs: int,
    size: tuple[int, int],
    rows: Sequence[UpLayer],
    channels: int,
    width: int,
    slope: float,
    crop: tuple[int, int] | None,
) -> list[nn.Module]:
    """The layers from a first map of `inputs` channels and `size` to an image; ends with tanh."""
    layers: list[nn.Module] = []
    for row in rows:
        stride = pair(row.stride)
        outputs = channels if row.channels is None else width * row.channels
        layers += _up_layer(row, inputs, outputs)
        layers.append(nn.Tanh() if row.channels is None else activation_layer("lrelu", slope))
        inputs, size = outputs, (size[0] * stride[0], size[1] * stride[1])
    if crop is not None and crop != size:
        if crop[0] > size[0] or crop[1] > size[1]:
            raise BadInput(f"crop must be at most the size of the last map, {size}, got {crop}")
        layers.insert(-1, Crop(crop))
    return layers


def _up_layer(row: UpLayer, inputs: int, outputs: int) -> list[nn.Module]:
    """The convolution of one row, with what its form needs around it."""
    kernel, stride = pair(row.kernel), pair(row.stride)
    if row.form == "shuffle":
        conv = nn.Conv2d(inputs, outputs * stride[0] ** 2, kernel, padding="same")
        return [conv] if stride[0] == 1 else [conv, nn.PixelShuffle(stride[0])]
    padding = ((kernel[0] - stride[0]) // 2, (kernel[1] - stride[1]) // 2)
    return [nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding)]


def _check_rows(rows: Sequence[UpLayer]) -> None:
    """Raise `BadInput` unless the rows describe a decoder: a first map, then layers that fit."""
    if len(rows) < 2:
        raise BadInput(f"rows must be a first map and at least one layer, got {len(rows)} rows")
    if any(row.channels is None for row in rows[:-1]) or rows[-1].channels is not None:
        raise BadInput("channels of the last row, and of no other, must be None (the image's)")
    check_positive(kernel=pair(rows[0].kernel), stride=pair(rows[0].stride))
    if pair(rows[0].stride) != (1, 1):
        raise BadInput(f"stride of the first row must be 1, got {rows[0].stride}")
    for row in rows[:-1]:
        check_positive(channels=row.channels or 0)
    for row in rows[1:]:
        kernel, stride = pair(row.kernel), pair(row.stride)
        check_positive(kernel=kernel, stride=stride)
        if row.form == "shuffle" and (stride[0] != stride[1] or kernel[0] % 2 + kernel[1] % 2 < 2):
            raise BadInput(f"a shuffle row must have one stride and an odd kernel, got {row}")
        if row.form == "transposed" and any(
            k < s or (k - s) % 2 for k, s in zip(kernel, stride, strict=True)
        ):
            raise BadInput(f"kernel of a row must exceed its stride by an even number, got {row}")
        if row.form not in ("transposed", "shuffle"):
            raise BadInput(f"form must be transposed or shuffle, got {row.form!r}")
