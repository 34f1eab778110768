"""A style-based decoder learned against a discriminator: what GAN inversion inverts.

The decoder and its training are those of Karras et al. 2019 and 2020 ("A Style-Based Generator
Architecture ...", "Analyzing and Improving the Image Quality of StyleGAN"), at any size: the
non-saturating loss of Goodfellow et al. 2014 and the penalty R1 of Mescheder et al. 2018.
"""

from __future__ import annotations

__all__ = ["GAN", "GANSettings", "GANSizes"]

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from damc.amortize import EMA
from damc.errors import BadInput
from damc.inversion.discriminator import Discriminator
from damc.inversion.stylegan import StyleDecoder, check_resolution
from damc.learn.learner import Learner
from damc.learn.parts import Metrics
from damc.learn.processes import mean_of_all
from damc.learn.settings import OptimizerSettings
from damc.learn.sources import Draw
from damc.randomness import normal


@dataclass(frozen=True)
class GANSizes:
    """Sizes of the two networks, as plain values.

    The decoder's images are squares of `resolution`, a power of two; smaller images of the data
    are padded to it with -1. At size s, both networks have `min(base // s, widest)` channels.
    """

    shape: tuple[int, int, int]  # of the data, (C, H, W)
    resolution: int = 32
    latent_dim: int = 32  # d, size of z
    style: int = 32  # size of the code of one layer
    base: int = 512
    widest: int = 64
    mapping_layers: int = 4

    def __post_init__(self) -> None:
        c, h, w = self.shape  # a list, if it was read from JSON
        object.__setattr__(self, "shape", (c, h, w))
        check_resolution(self.resolution)
        if max(h, w) > self.resolution:
            raise BadInput(
                f"images must be at most {self.resolution}x{self.resolution}, as the decoder makes "
                f"them, got {h}x{w}"
            )

    def build_decoder(self) -> StyleDecoder:
        """g, from z by codes to images `(B, C, resolution, resolution)`."""
        return StyleDecoder(
            self.resolution,
            self.shape[0],
            latent_dim=self.latent_dim,
            style=self.style,
            base=self.base,
            widest=self.widest,
            mapping_layers=self.mapping_layers,
        )

    def build_discriminator(self) -> Discriminator:
        """Images of the decoder's size to logits."""
        return Discriminator(self.resolution, self.shape[0], base=self.base, widest=self.widest)


@dataclass(frozen=True)
class GANSettings(OptimizerSettings):
    """Settings of the training."""

    r1: float = 1.0  # gamma: the weight of half the squared gradient at real images
    r1_every: int = 16  # iterations between penalties, each then as many times heavier
    decoder_rate: float = 2e-3
    discriminator_rate: float = 2e-3
    beta1: float = 0.0
    beta2: float = 0.99
    ema_rate: float = 0.005  # of the copy of the decoder that is used
    w_rate: float = 0.005  # of the average codes

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's."""
        return self.beta1, self.beta2


class GAN(Learner):
    """A `StyleDecoder` and a `Discriminator` that learn from each other.

    Args:
        sizes: of the networks.
        settings: of the training.

    Attributes:
        decoder: the exponential moving average (EMA) of the decoder in training, `learned`. It is
            the result: `sample`, `codes` and `decode` use it.
    """

    name: ClassVar[str] = "gan"
    about: ClassVar[str] = "a StyleGAN decoder against a discriminator, to be inverted"
    settings_type: ClassVar[Any] = GANSettings
    takes_presets: ClassVar[bool] = False
    r1: Tensor
    averages: Tensor

    def __init__(self, sizes: GANSizes, settings: GANSettings | None = None) -> None:
        s = settings or GANSettings()
        super().__init__(s)
        self.sizes = sizes
        self.learned = sizes.build_decoder()
        self.discriminator = sizes.build_discriminator()
        self.ema = EMA(self.learned, s.ema_rate)
        self.decoder: StyleDecoder = self.ema.module
        # The penalty is not computed in every iteration; its last value is logged until the next.
        self.register_buffer("r1", torch.zeros(()))
        synthesis = self.learned.synthesis
        self.register_buffer("averages", torch.zeros(synthesis.layers, synthesis.style))
        for name, module, rate in (
            ("discriminator", self.discriminator, s.discriminator_rate),
            ("decoder", self.learned, s.decoder_rate),
        ):
            weights = [p for p in module.parameters() if p.requires_grad]
            self.optimizers.add(name, weights, s.learning_rate(rate), betas=s.betas)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> GAN:
        """The learner that `config` describes, with fresh weights."""
        return cls(GANSizes(**config["networks"]), GANSettings(**config["settings"]))

    @property
    def config(self) -> dict[str, Any]:
        """Plain values from which `from_config` builds this learner again."""
        return {"networks": asdict(self.sizes), "settings": asdict(self.settings)}

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        """One update of the discriminator, then one of the decoder.

        With logits D, discriminator and decoder go down

            mean softplus(D(g(z))) + mean softplus(-D(x)) + (r1 / 2) mean |grad_x D(x)|^2
            mean softplus(-D(g(z)))

        the penalty only every `r1_every` iterations, and then that many times as heavy.
        """
        s, critic = self.settings, self.discriminator
        x = self.pad(x).detach()
        w = self.learned.codes(self._noise(len(x), generator), truncate=False)
        fake = self.learned.synthesis(w, fresh_noise=True, generator=generator)

        # The discriminator: real images up, the decoder's down.
        penalized = s.r1 > 0 and self.iteration % s.r1_every == 0
        real_logits = critic(x.requires_grad_(penalized))
        fake_logits = critic(fake.detach())
        loss = F.softplus(fake_logits).mean() + F.softplus(-real_logits).mean()
        metrics = {
            "discriminator_loss": loss.detach(),
            "real_logit": real_logits.detach().mean(),
            "fake_logit": fake_logits.detach().mean(),
        }
        if penalized:
            (gradient,) = torch.autograd.grad(real_logits.sum(), x, create_graph=True)
            r1 = gradient.square().sum((1, 2, 3)).mean()
            self.r1.copy_(r1.detach())
            loss = loss + s.r1_every * s.r1 / 2 * r1
        metrics["discriminator_gradient"] = self.update("discriminator", loss)

        # The decoder: the same images up, past the new discriminator.
        loss = F.softplus(-critic(fake)).mean()
        metrics["decoder_loss"] = loss.detach()
        metrics["decoder_gradient"] = self.update("decoder", loss)
        metrics["r1"] = self.r1.clone()

        self.iteration += 1
        self.ema.update()
        self.averages.lerp_(mean_of_all(w.detach().mean(0)), s.w_rate)
        for decoder in (self.learned, self.decoder):
            decoder.truncation.w_avg.copy_(self.averages.mean(0))
        return metrics

    def draws(self) -> Mapping[str, Draw]:
        """Codes of random images, not truncated."""
        return {"gaussian": lambda n, steps, generator: self.codes(n, generator)}

    def decode(self, z: Tensor) -> Tensor:
        """Images of codes z ``(B, layers * style)``, of the data's shape."""
        return self.crop(self.synthesize(z))

    @torch.no_grad()
    def codes(
        self, n: int, generator: torch.Generator | None = None, *, truncation: float = 1.0
    ) -> Tensor:
        """Codes of random images, one for each layer, flattened: ``(n, layers * style)``.

        They are truncated towards the average of their own layer. The decoder's `truncation` keeps
        the published form, one average for all layers.
        """
        if not 0 <= truncation <= 1:
            raise BadInput(f"truncation must lie in [0, 1], got {truncation}")
        w = self.decoder.codes(self._noise(n, generator), truncate=False)
        return (self.averages + (w - self.averages) * truncation).flatten(1)

    def synthesize(self, codes: Tensor) -> Tensor:
        """Images of codes ``(B, layers * style)``: ``(B, C, resolution, resolution)``.

        A smooth function of the codes alone: the noise is the decoder's own, always the same.
        """
        images: Tensor = self.decoder.synthesis(codes)
        return images

    def pad(self, x: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` in the middle of the decoder's squares, with -1 around them."""
        if x.shape[1:] != self.sizes.shape:
            raise BadInput(f"images must have shape {self.sizes.shape}, got {tuple(x.shape[1:])}")
        top, left, bottom, right = self._margins()
        return F.pad(x, (left, right, top, bottom), value=-1.0)

    def crop(self, images: Tensor) -> Tensor:
        """Undoes `pad`."""
        top, left, _, _ = self._margins()
        _, h, w = self.sizes.shape
        return images[..., top : top + h, left : left + w]

    def _margins(self) -> tuple[int, int, int, int]:
        """Pixels above, to the left, below and to the right of an image."""
        rows, columns = (self.sizes.resolution - side for side in self.sizes.shape[1:])
        return rows // 2, columns // 2, rows - rows // 2, columns - columns // 2

    def _noise(self, n: int, generator: torch.Generator | None) -> Tensor:
        like = self.r1
        return normal(
            n, self.sizes.latent_dim, generator=generator, dtype=like.dtype, device=like.device
        )
