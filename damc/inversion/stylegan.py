"""The style-based decoder whose codes are inverted: StyleGAN with one style code for each layer.

Karras et al. 2019, "A Style-Based Generator Architecture for Generative Adversarial Networks", in
the form of Zhu et al. 2020, "In-Domain GAN Inversion for Real Image Editing": the mapping gives a
different code to every layer, and images end with tanh. Published files call it the generator; here
g is a decoder, and a generator a random-number generator. Keys of the state dict are the published
ones.
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
from damc.inversion.stylegan_layers import (
    SLOPE,
    EqualDense,
    StyleConstant,
    StyleConv,
    StyleUp,
    ToImage,
    pixel_norm,
)
from damc.nets.mlp import check_positive
from damc.randomness import normal

__all__ = [
    "StyleDecoder",
    "StyleMapping",
    "StyleSynthesis",
    "Truncation",
    "check_resolution",
    "load_style_decoder",
    "style_decoder_from",
    "style_sizes",
]


class StyleDecoder(nn.Module):
    """Latent points to codes, one for each layer, to images; the defaults are the published ones.

    What is inverted is `synthesis`, the part from codes to images.

    Args:
        resolution: height and width of the images, a power of two from 8 to 1024. There are two
            style layers for each of the sizes 4, 8, ..., resolution, so 14 at 256.
        channels: channels of the images.
        latent_dim: dimension d of z.
        style: size of the code of one layer.
        base: width of the maps: at size s they have `min(base // s, widest)` channels.
        widest: the largest number of channels.
        mapping_layers: how many dense layers the mapping has.
        fused_from: the first size that is reached by a fused transposed convolution.
        truncation: factor of the distance to the average code in the first layers.
        truncated_layers: how many layers are truncated.

    >>> decoder = StyleDecoder(16, latent_dim=8, style=8, base=128, widest=16, mapping_layers=2)
    >>> codes = decoder.codes(torch.zeros(3, 8))
    >>> codes.shape, decoder.synthesis(codes).shape
    (torch.Size([3, 6, 8]), torch.Size([3, 3, 16, 16]))
    """

    def __init__(
        self,
        resolution: int = 256,
        channels: int = 3,
        *,
        latent_dim: int = 512,
        style: int = 512,
        base: int = 16384,
        widest: int = 512,
        mapping_layers: int = 8,
        fused_from: int = 128,
        truncation: float = 0.7,
        truncated_layers: int = 8,
    ) -> None:
        super().__init__()
        check_resolution(resolution)
        check_positive(
            channels=channels,
            latent_dim=latent_dim,
            style=style,
            base=base,
            widest=widest,
            mapping_layers=mapping_layers,
        )
        if base < resolution:
            raise BadInput(f"base must be at least the resolution, {resolution}, got {base}")
        layers = 2 * (resolution.bit_length() - 2)
        self.mapping = StyleMapping(latent_dim, style, layers, mapping_layers)
        self.truncation = Truncation(style, layers, truncation, truncated_layers)
        self.synthesis = StyleSynthesis(resolution, channels, style, base, widest, fused_from)

    def codes(self, z: Tensor, truncate: bool = True) -> Tensor:
        """Codes `(B, layers, style)` of latent points `z: (B, d)`."""
        w: Tensor = self.mapping(z)
        return self.truncation(w) if truncate else w

    def forward(self, z: Tensor, truncate: bool = True) -> Tensor:
        """Images `(B, C, H, W)` in [-1, 1] of latent points `z: (B, d)`."""
        images: Tensor = self.synthesis(self.codes(z, truncate))
        return images


class StyleMapping(nn.Module):
    """Dense layers from `z: (B, latent_dim)` to codes `(B, layers, style)`, all with LeakyReLU."""

    def __init__(self, latent_dim: int, style: int, layers: int, depth: int) -> None:
        super().__init__()
        self.latent_dim, self.depth, self.shape = latent_dim, depth, (layers, style)
        for i in range(depth):
            inputs = latent_dim if i == 0 else style
            outputs = layers * style if i == depth - 1 else style
            self.add_module(f"dense{i}", EqualDense(inputs, outputs, multiplier=0.01))

    def forward(self, z: Tensor) -> Tensor:
        """Codes `(B, layers, style)` of latent points `z: (B, latent_dim)`."""
        if z.ndim != 2 or z.shape[1] != self.latent_dim:
            raise BadInput(f"z must have shape (B, {self.latent_dim}), got {tuple(z.shape)}")
        w = pixel_norm(z)
        for i in range(self.depth):
            w = F.leaky_relu(self.get_submodule(f"dense{i}")(w), SLOPE)
        return w.view(-1, *self.shape)


class Truncation(nn.Module):
    """Codes moved towards their average, where images are better and less varied.

    `w_avg + (w - w_avg) * c`, with c = `strength` on the first `truncated` layers and 1 above; a
    strength of 1 changes nothing. `w_avg: (style,)` is updated by the training of the decoder.
    """

    w_avg: Tensor
    truncation: Tensor

    def __init__(self, style: int, layers: int, strength: float, truncated: int) -> None:
        super().__init__()
        self.register_buffer("w_avg", torch.zeros(style))
        c = torch.ones(1, layers, 1)
        c[:, : max(truncated, 0)] = strength
        self.register_buffer("truncation", c)

    def forward(self, w: Tensor) -> Tensor:
        """Codes of the shape of `w: (B, layers, style)`."""
        return self.w_avg + (w - self.w_avg) * self.truncation


class StyleSynthesis(nn.Module):
    """Codes to images: a constant map, styled, convolved and doubled until it is an image.

    Checkpoints of progressive growing have `lod`, the current level of detail, and an image output
    for each size. Only the last output is used here.
    """

    def __init__(
        self, resolution: int, channels: int, style: int, base: int, widest: int, fused_from: int
    ) -> None:
        super().__init__()
        sizes = [2**n for n in range(2, resolution.bit_length())]
        widths = [min(base // size, widest) for size in sizes]
        self.style, self.layers = style, 2 * len(sizes)
        self.lod = nn.Parameter(torch.zeros(()), requires_grad=False)
        for i, (size, width) in enumerate(zip(sizes, widths, strict=True)):
            first = (
                StyleConstant(size, width, style)
                if i == 0
                else StyleUp(size, widths[i - 1], width, style, fused=size >= fused_from)
            )
            self.add_module(f"layer{2 * i}", first)
            self.add_module(f"layer{2 * i + 1}", StyleConv(size, width, style))
            output = ToImage(width, channels)
            # Outputs on the way see no gradient; data-parallel training insists on one otherwise.
            self.add_module(f"output{i}", output.requires_grad_(size == resolution))

    def forward(
        self,
        codes: Tensor,
        fresh_noise: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Images `(B, C, H, W)` in [-1, 1] of codes `(B, layers, style)`, or the same flattened.

        Args:
            codes: one style code for each layer.
            fresh_noise: draw new noise for every map and image, as in training, instead of the
                decoder's own.
            generator: where that noise comes from.
        """
        if codes.shape[1:] not in ((self.layers, self.style), (self.layers * self.style,)):
            raise BadInput(
                f"codes must have shape (B, {self.layers}, {self.style}) or "
                f"(B, {self.layers * self.style}), got {tuple(codes.shape)}"
            )
        x = codes
        styles = codes.reshape(-1, self.layers, self.style).unbind(1)
        for i, w in enumerate(styles):
            noise = None
            if fresh_noise:
                side = 4 * 2 ** (i // 2)
                # Drawn on the device of the random-number generator, so that a seed is enough.
                place = codes.device if generator is None else generator.device
                noise = normal(len(w), 1, side, side, generator=generator, device=place, dim=0).to(
                    w
                )
            layer = self.get_submodule(f"layer{i}")
            x = layer(w, noise) if i == 0 else layer(x, w, noise)
        output: Tensor = self.get_submodule(f"output{self.layers // 2 - 1}")(x)
        return output.tanh()


def load_style_decoder(
    path: str | Path, truncation: float = 0.7, truncated_layers: int = 8
) -> StyleDecoder:
    """A decoder from a published `.pth` file or a `.safetensors` file, in evaluation mode.

    Its sizes are those of the file's tensors; the truncation is an argument, as no file has it.
    """
    return style_decoder_from(read_checkpoint(path), str(path), truncation, truncated_layers)


def style_decoder_from(
    state: Mapping[str, Tensor],
    source: str,
    truncation: float = 0.7,
    truncated_layers: int = 8,
) -> StyleDecoder:
    """A decoder with these tensors; `source` is their name in error messages."""
    sizes = style_sizes(state)
    with torch.device("meta"):
        decoder = StyleDecoder(**sizes)
    own = Truncation(1, decoder.synthesis.layers, truncation, truncated_layers).truncation
    what = f"the StyleGAN decoder of {sizes['resolution']} pixels"
    fill(decoder, {**state, "truncation.truncation": own}, source, what)
    lod = decoder.synthesis.lod.item()
    if lod != 0:
        raise BadInput(f"{source} must have synthesis.lod 0, a fully grown decoder, got {lod:g}")
    return decoder.eval()


def check_resolution(resolution: int) -> None:
    """Raise `BadInput` unless the number is a power of two from 8 to 1024."""
    if resolution not in (8, 16, 32, 64, 128, 256, 512, 1024):
        raise BadInput(f"resolution must be a power of two from 8 to 1024, got {resolution}")


def style_sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The arguments of `StyleDecoder` by the shapes of these tensors, which are not checked."""
    layers = [int(n) for key in state for n in re.findall(r"^synthesis\.layer(\d{1,2})\.", key)]
    outputs = [int(n) for key in state for n in re.findall(r"^synthesis\.output(\d{1,2})\.", key)]
    depth = [int(n) for key in state for n in re.findall(r"^mapping\.dense(\d{1,2})\.", key)]
    # The larger of the two: a damaged file may lack some of them.
    last = max([n // 2 for n in layers] + outputs, default=6)
    resolution = 4 * 2 ** min(max(last, 1), 8)
    blocks = resolution.bit_length() - 2
    widths = [
        size_of(
            state,
            0,
            (f"synthesis.layer{2 * i + 1}.conv.weight", 0),
            (f"synthesis.layer{2 * i + 1}.epilogue.bias", 0),
            (f"synthesis.layer{2 * i}.epilogue.bias", 0),
            (f"synthesis.output{i}.conv.weight", 1),
        )
        for i in range(blocks)
    ]
    output = f"synthesis.output{blocks - 1}"
    modulation = [f"synthesis.layer{i}.epilogue.style_mod.dense.fc.weight" for i in (0, 1)]
    fused = [4 * 2**i for i in range(blocks) if f"synthesis.layer{2 * i}.weight" in state]
    plain = [4 * 2**i for i in range(blocks) if f"synthesis.layer{2 * i}.conv.weight" in state]
    return {
        "resolution": resolution,
        "channels": size_of(
            state,
            3,
            (f"{output}.conv.weight", 0),
            (f"{output}.bias", 0),
            ("synthesis.output0.bias", 0),
        ),
        "latent_dim": size_of(state, 512, ("mapping.dense0.fc.weight", 1)),
        "style": size_of(
            state, 512, ("truncation.w_avg", 0), (modulation[0], 1), (modulation[1], 1)
        ),
        # The smallest base that gives these widths, also where they are limited by `widest`.
        "base": max(*(4 * 2**i * width for i, width in enumerate(widths)), resolution),
        "widest": max(*widths, 1),
        "mapping_layers": max(depth, default=7) + 1,
        "fused_from": min(fused, default=max(128, 2 * max(plain, default=0))),
    }
