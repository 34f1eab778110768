"""What the networks of a learner are, as plain values that a run folder can hold."""

from __future__ import annotations

__all__ = ["DECODER_KINDS", "ENCODER_KINDS", "Networks"]

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from damc import nets
from damc.amortize import Amortizer
from damc.errors import BadInput
from damc.latent import LatentModel
from damc.nets.hierarchy import Hierarchy, conv_hierarchy, mlp_hierarchy

Description = dict[str, Any]

DECODER_KINDS: dict[str, Callable[..., nn.Module]] = {
    "conv": lambda latent_dim, shape, rows, **options: nets.conv_decoder(
        latent_dim, _rows(nets.DECODERS, rows), shape[0], **options
    ),
    "hybrid": lambda latent_dim, shape, rows, **options: nets.mlp_conv_decoder(
        latent_dim, shape, _rows(nets.HYBRIDS, rows), **options
    ),
    "mlp": nets.mlp_decoder,
}
"""Decoders by the kind that descriptions name: from ``(latent_dim, shape, **options)``."""

ENCODER_KINDS: dict[str, Callable[..., nn.Module]] = {
    "conv": lambda shape, embedding, rows, **options: nets.conv_encoder(
        shape, _rows(nets.ENCODERS, rows), embedding, **options
    ),
    "mlp": lambda shape, embedding, **options: nets.mlp_encoder(
        shape, embedding=embedding, **options
    ),
}
"""Encoders by the kind that descriptions name: from ``(shape, embedding, **options)``."""


@dataclass(frozen=True)
class Networks:
    """What the networks of a learner are, as plain values.

    Args:
        shape: of the images, (C, H, W).
        latent_dim: d, size of z.
        decoder: {"kind": "conv", "rows": a name in `damc.nets.DECODERS`, "width": ngf},
            {"kind": "hybrid", "rows": a name in `damc.nets.HYBRIDS`, "width": ..., "hidden": ...}
            or {"kind": "mlp", "hidden": ...}.
        encoder: {"kind": "conv", "rows": a name in `damc.nets.ENCODERS`, "width": nif} or
            {"kind": "mlp", "hidden": ...}.
        energy: hidden sizes of the energy MLP; None for a Gaussian prior.
        embedding: size of the encoder's output.
        amortizer: options of `damc.Amortizer`.
    """

    shape: tuple[int, int, int]
    latent_dim: int
    decoder: Description
    encoder: Description
    energy: Description | None = field(default_factory=lambda: {"hidden": [200, 200]})
    embedding: int = 1024
    amortizer: Description = field(default_factory=dict)

    def __post_init__(self) -> None:
        c, h, w = self.shape  # JSON makes it a list
        object.__setattr__(self, "shape", (c, h, w))

    def build_decoder(self) -> nn.Module:
        """g, from z to images of `shape`."""
        return _build("decoder", DECODER_KINDS, self.decoder, self.latent_dim, self.shape)

    def build_hierarchy(self, sizes: tuple[int, ...]) -> Hierarchy:
        """A decoder of layers of latent variables of these sizes, of the kind described."""
        if self.decoder["kind"] == "conv":
            return conv_hierarchy(sizes, self.shape)
        width = 2 * self.latent_dim
        return mlp_hierarchy(sizes, width, replace(self, latent_dim=width).build_decoder())

    def build_code_encoder(self, outputs: int) -> nn.Module:
        """Images to ``(B, outputs)``: the encoder of embeddings with a linear layer on top."""
        head = nn.Linear(self.embedding, outputs)
        return nn.Sequential(self.build_encoder(), nn.LeakyReLU(0.2), head)

    def build_encoder(self) -> nn.Module:
        """Images to embeddings, the condition of the amortizer."""
        return _build("encoder", ENCODER_KINDS, self.encoder, self.shape, self.embedding)

    def build_energy(self) -> nn.Module | None:
        """The energy of the prior, or None for a Gaussian one."""
        return None if self.energy is None else nets.mlp_energy(self.latent_dim, **self.energy)

    def build_amortizer(self, **changes: Any) -> Amortizer:
        """q(z | x) and q(z), with the encoder, and some of its options changed."""
        options = {**self.amortizer, **changes}
        if "widths" in options:
            options["widths"] = tuple(options["widths"])
        return Amortizer(self.latent_dim, self.build_encoder(), embedding=self.embedding, **options)

    def build_model(self, sigma: float, *, energy: bool = True) -> LatentModel:
        """Energy and decoder in one; without `energy` the prior stays Gaussian."""
        # The order of building decides which weights a seed gives.
        built = self.build_energy() if energy else None
        return LatentModel(self.build_decoder(), built, self.latent_dim, sigma)


def _rows(table: Mapping[str, Any], name: str) -> Any:
    """The layers of that name."""
    if name not in table:
        raise BadInput(f"rows must be one of {', '.join(table)}, got {name!r}")
    return table[name]


def _build(
    role: str, kinds: Mapping[str, Callable[..., nn.Module]], given: Description, *sizes: Any
) -> nn.Module:
    """The network that a description names, of these sizes."""
    options = dict(given)
    kind = options.pop("kind")
    if kind not in kinds:
        raise BadInput(f"kind of the {role} must be {' or '.join(kinds)}, got {kind!r}")
    return kinds[kind](*sizes, **options)
