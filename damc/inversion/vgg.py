"""VGG16 up to its tenth convolution: features for a perceptual distance of images.

Simonyan & Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image Recognition".
Weights are those of the original release (`vgg16.pth` of in-domain inversion, Zhu et al. 2020),
whose input is blue, green and red from 0 to 255 minus the mean of the training images.
torchvision's VGG16, and LPIPS on it, have other weights and another input scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from damc.errors import BadInput
from damc.inversion.checkpoint import fill, read_checkpoint, size_of
from damc.nets.mlp import check_positive

__all__ = ["MEAN", "VGG16", "load_vgg16", "vgg16_from"]

MEAN = (103.939, 116.779, 123.68)
"""Mean blue, green and red, from 0 to 255, of the images that VGG16 was trained on."""

_BLOCKS = ((1, 2), (2, 2), (4, 3), (8, 3))
"""Channels, in multiples of the width, and the number of convolutions of each block."""

_SPARE = {f"layer{i}.{name}" for i in (24, 26, 28) for name in ("weight", "bias")}


class VGG16(nn.Module):
    """Images in [-1, 1] to the maps after the third convolution of block 4 and its ReLU.

    Args:
        width: channels of the first block; 64 in the published network.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        check_positive(width=width)
        layers: list[nn.Module] = []
        inputs = 3
        for times, convolutions in _BLOCKS:
            if layers:
                layers.append(nn.MaxPool2d(2))
            for _ in range(convolutions):
                layers += [nn.Conv2d(inputs, times * width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = times * width
        for i, layer in enumerate(layers):
            self.add_module(f"layer{i}", layer)

    def forward(self, x: Tensor) -> Tensor:
        """Features `(B, 8 * width, H // 8, W // 8)` of images `x: (B, C, H, W)`, C of 1 or 3."""
        if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < 8:
            raise BadInput(
                "images must have shape (B, 1, H, W) or (B, 3, H, W) with H and W of at least 8, "
                f"got {tuple(x.shape)}"
            )
        x = (x.expand(-1, 3, -1, -1).flip(1) + 1) * 127.5 - x.new_tensor(MEAN).view(-1, 1, 1)
        for layer in self.children():
            x = layer(x)
        return x

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared differences of features, `(B,)`, between images `x` and `y`."""
        difference: Tensor = self(x) - self(y)
        return difference.square().mean((1, 2, 3))


def load_vgg16(path: str | Path) -> VGG16:
    """VGG16 from the published `vgg16.pth` or a `.safetensors` file, in evaluation mode."""
    return vgg16_from(read_checkpoint(path), str(path))


def vgg16_from(state: Mapping[str, Tensor], source: str) -> VGG16:
    """VGG16 with these tensors; those of its fifth block may be there and are not used."""
    with torch.device("meta"):
        net = VGG16(
            size_of(state, 64, *((f"layer{key}", 0) for key in ("0.weight", "0.bias", "2.bias")))
        )
    fill(net, state, source, "VGG16", spare=_SPARE)
    return net.eval()
