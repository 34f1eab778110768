"""The variational auto-encoder: a Gaussian encoder, a Gaussian prior, one bound.

Kingma and Welling, "Auto-Encoding Variational Bayes", ICLR 2014.
"""

from __future__ import annotations

__all__ = ["VAE", "VAESettings", "divergence", "draw"]

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from damc.latent import LatentModel
from damc.learn.learner import Learner
from damc.learn.parts import Metrics
from damc.learn.settings import ModelSettings
from damc.learn.sources import Infer
from damc.nets.networks import Networks
from damc.randomness import normal_like


@dataclass(frozen=True)
class VAESettings(ModelSettings):
    """Choices of the VAE; the defaults are those of the DAMC authors' comparison."""

    sigma: float = 0.5**0.5  # their loss is |x - g(z)|^2 + KL, which means sigma^2 = 1/2
    learn_sigma: bool = False  # Dai and Wipf (2019): sigma is a weight like any other
    score_draws: int = 10  # draws of z that the anomaly score averages over


class VAE(Learner):
    """Encoder and decoder, learned together by the bound

        -log p(x) <= E_q(z|x)[ |x - g(z)|^2 / (2 sigma^2) + n log sigma ] + KL(q(z|x) || N(0, I)),

    up to a constant, with n pixels and q(z|x) = N(m(x), diag v(x)). The loss is the bound times
    2 sigma^2: then `clip` means the same as in Algorithm 1, whatever sigma is. With linear m and
    g and constant v the optimum is probabilistic PCA.

    Args:
        model: the decoder and sigma; its prior is N(0, I).
        encoder: any module from x ``(B, ...)`` to ``(B, 2 d)``, m beside log v.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "vae"
    about: ClassVar[str] = "Gaussian encoder and prior, learned by the variational bound"
    settings_type: ClassVar[Any] = VAESettings
    inference: ClassVar[str | None] = "encoder"
    score: ClassVar[str | None] = "bound"
    log_sigma: Tensor

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        settings: VAESettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or VAESettings(sigma=model.sigma)
        super().__init__(s, networks, model)
        self.encoder = encoder
        log_sigma = torch.tensor(math.log(s.sigma))
        if s.learn_sigma:
            self.log_sigma = nn.Parameter(log_sigma)
        else:
            self.register_buffer("log_sigma", log_sigma)
        rate = s.learning_rate(s.decoder_rate)
        self.optimizers.add("vae", self.parameters(), rate, betas=s.betas)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> VAE:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma, energy=False)
        encoder = networks.build_code_encoder(2 * networks.latent_dim)
        return cls(model, encoder, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        m, log_v = self.encode(x)
        z = draw(m, log_v, generator)
        error, kl = self.model.squared_error(x, z).mean(), divergence(m, log_v).mean()
        bound = self.bound(error, kl, x[0].numel())
        norm = self.update("vae", 2 * self.variance.detach() * bound)
        self.iteration += 1
        metrics = {
            "mse": error.detach() / x[0].numel(),
            "divergence": kl.detach(),
            "bound": bound.detach(),
            "z_norm": z.detach().square().mean(),
            "vae_gradient": norm,
        }
        if self.settings.learn_sigma:
            metrics["sigma"] = self.log_sigma.detach().exp()
        return metrics

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m(x) and log v(x), each ``(B, d)``."""
        m, log_v = self.encoder(x).chunk(2, 1)
        return m, log_v

    @torch.no_grad()
    def codes(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws of q(z | x), ``(B, d)``: what a second stage learns from."""
        return draw(*self.encode(x), generator)

    @property
    def variance(self) -> Tensor:
        """sigma^2."""
        return (2 * self.log_sigma).exp()

    def bound(self, error: Tensor, kl: Tensor, n: int) -> Tensor:
        """-log p(x) is at most this plus n log(2 pi) / 2, for errors summed over n pixels."""
        return error / (2 * self.variance) + n * self.log_sigma + kl

    def inferences(self) -> Mapping[str, Infer]:
        """The encoder's mean m(x)."""
        return {"encoder": lambda x, steps, noise, generator: self.encode(x)[0]}

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The bound on -log p(x), its expectation over `score_draws` draws of z, ``(B,)``."""
        m, log_v = self.encode(x)
        error = torch.zeros_like(m[:, 0])
        for _ in range(self.settings.score_draws):
            error += self.model.squared_error(x, draw(m, log_v, generator))
        return self.bound(error / self.settings.score_draws, divergence(m, log_v), x[0].numel())


def draw(m: Tensor, log_v: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """z = m + v^(1/2) w with w ~ N(0, I), through which gradients pass, ``(B, d)``."""
    return torch.addcmul(m, (log_v / 2).exp(), normal_like(m, generator))


def divergence(m: Tensor, log_v: Tensor) -> Tensor:
    """KL(N(m, diag v) || N(0, I)), ``(B,)``.

    Example:
        >>> divergence(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2))
        tensor([2.])
    """
    return (m.square() + log_v.exp() - 1 - log_v).sum(1) / 2
