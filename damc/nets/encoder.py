"""Encoders: images in, the embedding that conditions the amortizer out.

Every convolutional encoder of the paper (Yu et al. 2023, table of the encoder networks) is a list
of rows, `ENCODERS`, read by one builder, `conv_encoder`: Conv, InstanceNorm, LeakyReLU for each
row, then one bare layer from what is left of the map to the embedding. (The paper's table shows
norm and activation after that layer too; its code has neither.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from damc.errors import BadInput
from damc.nets.mlp import check_positive, mlp

__all__ = ["ENCODERS", "DownLayer", "conv_encoder", "encoder_for", "encoder_rows", "mlp_encoder"]


@dataclass(frozen=True)
class DownLayer:
    """One convolution of an encoder.

    Args:
        channels: output channels, as a multiple of the builder's `width`.
        kernel: kernel size, or (vertical, horizontal).
        stride: stride, or (vertical, horizontal); the map is padded by (kernel - 1) // 2.
    """

    channels: int
    kernel: int | tuple[int, int]
    stride: int | tuple[int, int] = 1


ENCODERS: dict[str, tuple[DownLayer, ...]] = {
    name: (DownLayer(1, 3, 1), *(DownLayer(channels, 4, 2) for channels in halving))
    for name, halving in {
        "svhn": (2, 4, 8),
        "celeba64": (2, 4, 8, 8),
        "cifar10": (2, 4, 8),
        "celebahq256": (2, 4, 4, 8, 8, 8),
        "mnist": (2, 4, 8),
    }.items()
}
"""The paper's encoders, in multiples of `width` (its nif: 64, and 128 for MNIST)."""


def conv_encoder(
    shape: Sequence[int],
    rows: Sequence[DownLayer],
    embedding: int = 1024,
    width: int = 64,
    slope: float = 0.2,
) -> nn.Sequential:
    """A convolutional encoder from images `x: (B, C, H, W)` to embeddings `(B, embedding)`.

    The last layer of the paper is a convolution as large as the map it meets, which is a linear
    layer of that map; written as one it has the same weights, count and initial distribution, and
    is several times faster on a CPU.

    Args:
        shape: (C, H, W) of the images.
        rows: the convolutions, for instance `ENCODERS["svhn"]`.
        embedding: size of the embedding.
        width: what the rows' channels are multiplied by.
        slope: negative slope of LeakyReLU.
    """
    channels, high, wide = image_shape(shape)
    check_positive(embedding=embedding, width=width)
    layers: list[nn.Module] = []
    for row in rows:
        kernel, stride = pair(row.kernel), pair(row.stride)
        check_positive(channels=row.channels, kernel=kernel, stride=stride)
        padding = ((kernel[0] - 1) // 2, (kernel[1] - 1) // 2)
        high = (high + 2 * padding[0] - kernel[0]) // stride[0] + 1
        wide = (wide + 2 * padding[1] - kernel[1]) // stride[1] + 1
        if min(high, wide) < 1 or high * wide < 2:
            raise BadInput(
                f"images of shape {tuple(shape)} shrink to {high} x {wide} pixels in the encoder; "
                f"instance normalization needs 2 or more, so give larger images or fewer rows"
            )
        outputs = width * row.channels
        layers += [
            nn.Conv2d(channels, outputs, kernel, stride, padding),
            nn.InstanceNorm2d(outputs, affine=True, track_running_stats=False),
            nn.LeakyReLU(slope),
        ]
        channels = outputs
    layers += [nn.Flatten(), nn.Linear(channels * high * wide, embedding)]
    return nn.Sequential(*layers)


def encoder_rows(shape: Sequence[int]) -> tuple[DownLayer, ...]:
    """Rows for images of any shape (C, H, W): halve each side until it is shorter than 8.

    For 32 x 32 and 64 x 64 images these are the paper's own rows.
    """
    _, high, wide = image_shape(shape)
    rows = [DownLayer(1, 3, 1)]
    while max(high, wide) >= 8:
        stride = (1 + (high >= 8), 1 + (wide >= 8))
        # A kernel of 4 halves a side exactly; a kernel of 3 keeps it.
        rows.append(
            DownLayer(min(8, 2 * rows[-1].channels), (2 + stride[0], 2 + stride[1]), stride)
        )
        high, wide = high // stride[0], wide // stride[1]
    return tuple(rows)


def encoder_for(
    shape: Sequence[int], embedding: int = 1024, width: int = 64, slope: float = 0.2
) -> nn.Sequential:
    """A convolutional encoder for images of any shape (C, H, W) with H and W of 4 or more."""
    return conv_encoder(shape, encoder_rows(shape), embedding, width, slope)


def mlp_encoder(
    shape: Sequence[int],
    hidden: Sequence[int] = (512, 256),
    embedding: int = 256,
    activation: str = "lrelu",
    side: int | None = None,
) -> nn.Sequential:
    """A fully connected encoder from `(B, *shape)`, images or plain vectors, to `(B, embedding)`.

    Args:
        shape: shape of one datum: (C, H, W), or (n,) for vectors.
        hidden: sizes of the hidden layers.
        embedding: size of the embedding.
        activation: name of the activation between layers.
        side: images with longer sides are averaged down to it first, which keeps the first layer
            small; None takes them as they are.
    """
    if not shape:
        raise BadInput("shape must have at least one dimension, got ()")
    check_positive(shape=shape, hidden=hidden, embedding=embedding)
    first: list[nn.Module] = []
    if side is not None and max(image_shape(shape)[1:]) > side:
        channels, high, wide = shape
        shape = (channels, min(side, high), min(side, wide))
        first.append(nn.AdaptiveAvgPool2d(shape[1:]))
    layers = mlp((math.prod(shape), *hidden, embedding), activation)
    return nn.Sequential(*first, nn.Flatten(), *layers)


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """The three sizes (C, H, W) of an image shape, checked: H and W of 4 or more."""
    if len(shape) != 3:
        raise BadInput(f"shape must be (channels, height, width), got {tuple(shape)}")
    check_positive(shape=shape)
    channels, high, wide = shape
    if min(high, wide) < 4:
        raise BadInput(
            f"images must be at least 4 x 4 for convolutional networks, got {high} x {wide}"
        )
    return channels, high, wide


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """(vertical, horizontal) from one number for both, or from the two."""
    return (size, size) if isinstance(size, int) else size
