"""The networks of decoder inversion as plain values, so that a run folder rebuilds them."""

from __future__ import annotations

__all__ = ["InversionNetworks"]

from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from damc import nets
from damc.amortize import Amortizer
from damc.errors import BadInput
from damc.inversion.learner import CodeEncoder, Inversion
from damc.inversion.problem import Problem, StyleCodes
from damc.inversion.settings import InversionSettings
from damc.inversion.stylegan import StyleDecoder, style_sizes
from damc.inversion.stylegan_encoder import StyleEncoder
from damc.inversion.vgg import VGG16

Description = dict[str, Any]


@dataclass(frozen=True)
class InversionNetworks:
    """A StyleGAN decoder and the networks that learn to invert it.

    Args:
        shape: of the images, (C, H, W); the decoder's squares are cut to it.
        decoder: arguments of `damc.inversion.stylegan.StyleDecoder`.
        encoder: {"kind": "conv", "width": nif}, or the in-domain encoder,
            {"kind": "style", "base": ..., "widest": ...}.
        energy: hidden sizes of the energy MLP.
        amortizer: options of `damc.Amortizer`. An embedding of None hands the condition to the
            denoiser as it is, as the authors do; else a linear layer brings it to that size.
        sigma: of the likelihood.
        vgg: width of the VGG16 that compares images; None compares pixels alone.
        perceptual_weight: of its distance, beside the pixel error's 1.
        rank: of the preconditioner.
    """

    shape: tuple[int, int, int]
    decoder: Description
    encoder: Description
    energy: Description = field(default_factory=lambda: {"hidden": [512, 512, 512]})
    amortizer: Description = field(default_factory=lambda: {"embedding": None})
    sigma: float = 0.1
    vgg: int | None = None
    perceptual_weight: float = 5e-5 / 1.5
    rank: int = 512

    def __post_init__(self) -> None:
        c, h, w = self.shape  # a list, if it was read from JSON
        object.__setattr__(self, "shape", (c, h, w))

    @classmethod
    def describe(
        cls,
        decoder: StyleDecoder,
        shape: tuple[int, int, int] | None = None,
        *,
        encoder: StyleEncoder | None = None,
        vgg: VGG16 | None = None,
        **options: Any,
    ) -> InversionNetworks:
        """Networks for a decoder; small ones below 128 pixels, the authors' from there on.

        Args:
            decoder: what is inverted.
            shape: (C, H, W) of the images; the decoder's own by default.
            encoder: an in-domain encoder that is given, not trained.
            vgg: the perceptual network, if there is one.
            **options: fields to change.
        """
        sizes = style_sizes(decoder.state_dict())
        side, channels = sizes["resolution"], sizes["channels"]
        chosen: Description = {"encoder": {"kind": "style", "base": 64, "widest": 1024}}
        if side < 128:
            chosen = {
                "encoder": {"kind": "conv", "width": 16},
                "energy": {"hidden": [256, 256]},
                "amortizer": {"embedding": 256, "capacity": 2.0},
            }
        if encoder is not None:
            base = encoder.state_dict()["block0.conv.weight"].shape[0]
            widths = [
                weight.shape[0]
                for key, weight in encoder.state_dict().items()
                if key.endswith("conv2.weight")
            ]
            chosen["encoder"] = {"kind": "style", "base": base, "widest": max(widths)}
        if vgg is not None:
            chosen["vgg"] = vgg.state_dict()["layer0.weight"].shape[0]
        known = {"shape": shape or (channels, side, side), "decoder": sizes}
        return cls(**{**known, **chosen, **options})

    def problem(self, decoder: StyleDecoder | None = None, vgg: VGG16 | None = None) -> Problem:
        """The decoder and its codes, not calibrated; a fresh decoder if none is given."""
        codes = StyleCodes(decoder or StyleDecoder(**self.decoder), self.shape)
        if self.vgg is not None and vgg is None:
            vgg = VGG16(self.vgg)
        return Problem(
            codes,
            codes.dim,
            self.shape,
            draw=codes.draw,
            sigma=self.sigma,
            perceptual=vgg,
            perceptual_weight=self.perceptual_weight,
            rank=self.rank,
        )

    def learner(
        self,
        settings: InversionSettings | None = None,
        problem: Problem | None = None,
        encoder: StyleEncoder | None = None,
    ) -> Inversion:
        """A learner with these networks, initialized except those that are given.

        Args:
            settings: of the learner.
            problem: the decoder; calibrated, if an encoder is given.
            encoder: an in-domain encoder of the decoder's codes.
        """
        s = settings or InversionSettings()
        problem = problem or self.problem()
        if encoder is None:
            codes = CodeEncoder(self._encoder(problem.dim), problem.dim)
        else:
            codes = CodeEncoder.giving_codes(encoder, problem)
        size = problem.dim * (2 if s.condition == "gradient" else 1)
        options = dict(self.amortizer)
        if "widths" in options:
            options["widths"] = tuple(options["widths"])
        embedding = options.pop("embedding")
        context = nn.Identity() if embedding is None else nn.Linear(size, embedding)
        amortizer = Amortizer(problem.dim, context, embedding=embedding or size, **options)
        energy = nets.mlp_energy(problem.dim, **self.energy)
        return Inversion(problem, codes, energy, amortizer, s, description=asdict(self))

    def _encoder(self, dim: int) -> nn.Module:
        options = dict(self.encoder)
        kind = options.pop("kind")
        if kind == "conv":
            return nets.encoder_for(self.shape, dim, **options)
        if kind != "style":
            raise BadInput(f"kind of the encoder must be conv or style, got {kind!r}")
        c, h, w = self.shape
        if h != w:
            raise BadInput(f"images of the in-domain encoder must be square, got {h}x{w}")
        return StyleEncoder(h, c, style=self.decoder["style"], **options)
