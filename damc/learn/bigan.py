"""BiGAN-sigma: a decoder and its inverse, learned against a critic of pairs; detects anomalies.

Donahue, Krahenbuhl and Darrell, "Adversarial Feature Learning", 2017 (BiGAN); Zenati, Foo, Lecouat,
Manek and Chandrasekhar, "Efficient GAN-Based Anomaly Detection", 2018 (its two scores).
"""

from __future__ import annotations

__all__ = ["BiGAN", "BiGANSettings"]

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from damc.amortize import EMA
from damc.learn.learner import Learner
from damc.learn.parts import Metrics
from damc.learn.presets import Recipe
from damc.learn.settings import OptimizerSettings
from damc.learn.sources import Draw, Infer, noise_draw
from damc.nets.joint import BiNetworks, Joint, without_norm
from damc.nets.networks import Networks


@dataclass(frozen=True)
class BiGANSettings(OptimizerSettings):
    """Every choice of BiGAN-sigma, the authors' code for MNIST as defaults."""

    score: str = "cross-entropy"  # the critic's part of the anomaly score, or "features"
    alpha: float = 0.9  # weight of the reconstruction error in the score; 1 - alpha the critic's
    dropout: float = 0.0  # of the critic; the authors: 0.5
    gradient_penalty: float = 0.015  # gamma for each pixel and channel; the authors: 0
    ema_rate: float = 0.001  # of the copies that are used after training
    ema_every: int = 1
    decoder_rate: float = 1e-5  # of the critic as well
    encoder_rate: float = 1e-5


class BiGAN(Learner):
    """Decoder g and encoder e deceive a critic D, which tells pairs (x, e(x)) from pairs (g(z), z).

        D:  mean softplus(-D(x, e(x))) + mean softplus(D(g(z), z)) + (gamma / 2) mean |grad D|^2
        g:  mean softplus(-D(g(z), z))
        e:  mean softplus(D(x, e(x)))

    with z ~ N(0, I). Only where e is the inverse of g, and g's images are distributed as the data,
    has D nothing to go by. The penalty, on the gradient by image and point at both kinds of pairs
    (Mescheder et al. 2018), is not the authors': without it the game circles, and at small scale e
    never comes to invert g. Its gamma is `gradient_penalty` times how many numbers an image has.

    An image that is unlike the data comes back from g(e(x)) changed, which is the anomaly score
    (see `anomaly_score`). As in the authors' code, EMA copies of the three networks are
    what `sample`, `infer` and everything else use.

    Args:
        learned: the three networks.
        latent_dim: d.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.

    Attributes:
        learned: the networks that learn.
        used: their EMA copies.
    """

    name: ClassVar[str] = "bigan-sigma"
    about: ClassVar[str] = "decoder and encoder against a critic of pairs, for anomalies"
    settings_type: ClassVar[Any] = BiGANSettings
    inference: ClassVar[str | None] = "encoder"
    score: ClassVar[str | None] = "reconstruction"

    def __init__(
        self,
        learned: BiNetworks,
        latent_dim: int,
        settings: BiGANSettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or BiGANSettings()
        super().__init__(s, networks)
        self.learned = learned
        self.latent_dim = latent_dim
        self.ema = EMA(learned, s.ema_rate)
        self.used: BiNetworks = self.ema.module
        add, rate = partial(self.optimizers.add, betas=s.betas), s.learning_rate
        add("critic", learned.critic.parameters(), rate(s.decoder_rate))
        add("decoder", learned.decoder.parameters(), rate(s.decoder_rate))
        add("encoder", learned.encoder.parameters(), rate(s.encoder_rate))

    @classmethod
    def settings_from(cls, recipe: Recipe) -> BiGANSettings:
        """The recipe's rates, the encoder's being that of the amortizer, and its EMA."""
        return BiGANSettings(
            **recipe.block(OptimizerSettings),
            encoder_rate=recipe.amortizer_rate,
            ema_rate=recipe.ema_rate,
            ema_every=recipe.ema_every,
        )

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> BiGAN:
        """A fresh learner; the critic sees images through layers like the encoder's."""
        size, latent_dim = networks.embedding, networks.latent_dim
        learned = BiNetworks(
            networks.build_decoder(),
            networks.build_code_encoder(latent_dim),
            Joint(without_norm(networks.build_encoder()), size, latent_dim),
        )
        return cls(learned, latent_dim, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, nets = self.settings, self.learned
        z = noise_draw(nets.decoder, self.latent_dim)(len(x), None, generator)
        fake, code = nets.decoder(z), nets.encoder(x)

        # The critic: up on data with their codes, down on points with their images.
        critic = partial(nets.critic, dropout=s.dropout, generator=generator)
        pairs = torch.cat([x, fake.detach()]), torch.cat([code.detach(), z])
        slopes = s.gradient_penalty > 0
        logits = critic(*(part.requires_grad_(slopes) for part in pairs))
        data, made = logits.chunk(2)
        loss = F.softplus(-data).mean() + F.softplus(made).mean()
        metrics = {
            "critic_loss": loss.detach(),
            "critic_gap": (data.mean() - made.mean()).detach(),
            "z_norm": code.detach().square().mean(),
        }
        if slopes:
            gradients = torch.autograd.grad(logits.sum(), pairs, create_graph=True)
            slope = torch.cat([part.flatten(1) for part in gradients], 1).square().sum() / len(x)
            metrics["critic_slope"] = slope.detach()
            loss = loss + s.gradient_penalty * x[0].numel() / 2 * slope
        metrics["critic_gradient"] = self.update("critic", loss)

        # The decoder and the encoder: the other way round.
        data, made = critic(x, code), critic(fake, z)
        decoder_loss, encoder_loss = F.softplus(-made).mean(), F.softplus(data).mean()
        metrics["decoder_loss"] = decoder_loss.detach()
        metrics["encoder_loss"] = encoder_loss.detach()
        metrics["decoder_gradient"] = self.update("decoder", decoder_loss)
        metrics["encoder_gradient"] = self.update("encoder", encoder_loss)

        self.iteration += 1
        if self.iteration % s.ema_every == 0:
            self.ema.update()
        return metrics

    def draws(self) -> Mapping[str, Draw]:
        """N(0, I)."""
        return {"gaussian": noise_draw(self.learned.decoder, self.latent_dim)}

    def inferences(self) -> Mapping[str, Infer]:
        """The code e(x). Nothing in it is random."""
        return {"encoder": lambda x, steps, noise, generator: self.used.encoder(x)}

    def decode(self, z: Tensor) -> Tensor:
        """g(z) of the EMA copy, ``(B, C, H, W)``."""
        images: Tensor = self.used.decoder(z)
        return images

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """alpha |x - g(e(x))|_1 + (1 - alpha) L(x), ``(B,)``: higher is more anomalous.

        L by the setting `score`: "cross-entropy", softplus(-D(g(e(x)), e(x))), how sure D is that
        this pair is no datum with its code; "features", the L1 distance between what D's last
        layer sees of (x, e(x)) and of (g(e(x)), e(x)). Both as in the authors' code.
        """
        s, critic = self.settings, self.used.critic
        z = self.infer(x)
        image = self.used.decoder(z)
        error = (x - image).abs().flatten(1).sum(1)
        again = critic.features(image, z)
        if s.score == "features":
            part = (critic.features(x, z) - again).abs().sum(1)
        else:
            part = F.softplus(-critic.read(again))
        score: Tensor = s.alpha * error + (1 - s.alpha) * part
        return score
