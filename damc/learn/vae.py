"""The variational auto-encoder: a Gaussian encoder, a Gaussian prior, one bound.

Kingma and Welling, "Auto-Encoding Variational Bayes", ICLR 2014.
"""

from __future__ import annotations

__all__ = ["VAE", "EncoderInference", "Settings", "divergence", "gaussian_encoder"]

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from damc.latent import LatentModel
from damc.learn.learner import Learner, Metrics, Rate
from damc.learn.settings import adam, check_settings
from damc.noise import normal_like

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings:
    """Choices of the VAE; the defaults are those of the DAMC authors' comparison."""

    sigma: float = 0.5**0.5  # their loss is |x - g(z)|^2 + KL, which means sigma^2 = 1/2
    learn_sigma: bool = False  # Dai and Wipf (2019): sigma is a weight like any other
    decoder_rate: float = 2e-4  # of encoder and decoder
    beta1: float = 0.5
    decay: str = "step"
    horizon: int = 1  # of decay = "cosine"
    clip: float = 100.0
    score_draws: int = 10  # draws of z that the anomaly score averages over

    def __post_init__(self) -> None:
        check_settings(self)


class EncoderInference(nn.Module):
    """Inference by a Gaussian encoder, for learners with an `encoder` and a `model`."""

    encoder: nn.Module
    model: LatentModel

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """m(x) and log v(x), each ``(B, d)``."""
        m, log_v = self.encoder(x).chunk(2, 1)
        return m, log_v

    @torch.no_grad()
    def codes(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draws of q(z | x), ``(B, d)``: what a second stage learns from."""
        return draw(*self.encode(x), generator)

    @torch.no_grad()
    def infer(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The encoder's mean m(x), ``(B, d)``."""
        return self.encode(x)[0]

    @torch.no_grad()
    def reconstruct(
        self, x: Tensor, *, refine: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        """g(m(x)), of the shape of x."""
        return self.model.decoder(self.infer(x))  # type: ignore[no-any-return]


class VAE(EncoderInference, Learner):
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
    settings_type: ClassVar[Any] = Settings
    log_sigma: Tensor

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        settings: Settings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or Settings(sigma=model.sigma)
        super().__init__(s, networks)
        self.model = model
        self.encoder = encoder
        self.clip = s.clip
        log_sigma = torch.tensor(math.log(s.sigma))
        if s.learn_sigma:
            self.log_sigma = nn.Parameter(log_sigma)
        else:
            self.register_buffer("log_sigma", log_sigma)
        optimizer = torch.optim.Adam(list(self.parameters()), lr=s.decoder_rate, **adam(s))
        self.own("vae", optimizer, Rate(s.decoder_rate, s.decay, s.horizon))

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> VAE:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma, energy=False)
        return cls(model, gaussian_encoder(networks), settings, networks)

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

    @property
    def variance(self) -> Tensor:
        """sigma^2."""
        return (2 * self.log_sigma).exp()

    def bound(self, error: Tensor, kl: Tensor, n: int) -> Tensor:
        """-log p(x) is at most this plus n log(2 pi) / 2, for errors summed over n pixels."""
        return error / (2 * self.variance) + n * self.log_sigma + kl

    @property
    def sources(self) -> tuple[str, ...]:
        """The way to draw from this model."""
        return ("gaussian",)

    @torch.no_grad()
    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """g(z) of z ~ N(0, I), ``(n, C, H, W)``."""
        return self.model.decoder(self.sample_latent(n, generator=generator))  # type: ignore[no-any-return]

    @torch.no_grad()
    def sample_latent(self, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """z ~ N(0, I), ``(n, d)``."""
        return self.log_sigma.new_empty(n, self.model.latent_dim).normal_(generator=generator)

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The bound on -log p(x), its expectation over `score_draws` draws of z, ``(B,)``."""
        m, log_v = self.encode(x)
        error = torch.zeros_like(m[:, 0])
        for _ in range(self.settings.score_draws):
            error += self.model.squared_error(x, draw(m, log_v, generator))
        return self.bound(error / self.settings.score_draws, divergence(m, log_v), x[0].numel())


def gaussian_encoder(networks: Networks) -> nn.Module:
    """The preset's encoder with a linear head: x to ``(B, 2 d)``, means beside log-variances."""
    head = nn.Linear(networks.amortizer["embedding"], 2 * networks.latent_dim)
    return nn.Sequential(networks.build_encoder(), nn.LeakyReLU(0.2), head)


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
