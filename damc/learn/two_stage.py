"""The two-stage VAE: a VAE with a learned sigma, then a second VAE on its codes.

Dai and Wipf, "Diagnosing and Enhancing VAE Models", ICLR 2019.
"""

from __future__ import annotations

__all__ = ["Settings", "TwoStageVAE"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from damc.latent import LatentModel
from damc.learn.learner import Metrics
from damc.learn.settings import check_settings, shared_settings
from damc.learn.stages import SecondStage
from damc.learn.vae import VAE
from damc.learn.vae import Settings as VAESettings
from damc.nets.mlp import mlp

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings:
    """Choices of the two-stage VAE, its authors' code as defaults."""

    sigma: float = 1.0  # where the learned one starts
    first: float = 0.5  # share of the first stage: 70 of 140 epochs on CelebA
    hidden: int = 1024  # width of the second VAE's layers, at most 16 d
    decoder_rate: float = 1e-4  # of all networks
    beta1: float = 0.9
    decay: str = "step"
    horizon: int = 200_000  # iterations of both stages together
    clip: float = 100.0
    score_draws: int = 10

    def __post_init__(self) -> None:
        check_settings(self)


class TwoStageVAE(SecondStage):
    """A VAE of images whose sigma is learned, then a VAE of its codes.

    First stage, for images x of n pixels (`damc.learn.vae`):

        E_q(z|x)[ |x - g(z)|^2 / (2 sigma^2) + n log sigma ] + KL(q(z|x) || N(0, I)).

    The learned sigma keeps falling as reconstruction improves, so the codes come to lie where
    the data are and no longer look like N(0, I). The second stage learns their law by the same
    bound, with z ~ q(z|x) drawn anew in the place of x, a latent u of the same size and a sigma
    of its own. Samples are u ~ N(0, I), z = g2(u) + sigma2 w, x = g(z). No chains anywhere.

    Args:
        base: the first VAE; its settings have `learn_sigma`.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "vae-2stage"
    about: ClassVar[str] = "VAE with a learned sigma, then a second VAE on its codes"
    settings_type: ClassVar[Any] = Settings
    second_sources: ClassVar[tuple[str, ...]] = ("second",)

    def __init__(self, base: VAE, settings: Settings, networks: Networks | None = None) -> None:
        super().__init__(base, settings, networks)
        s, d = settings, base.model.latent_dim
        width = min(s.hidden, 16 * d)
        decoder, encoder = SkipMLP(d, width, d), SkipMLP(d, width, 2 * d)
        left = max(s.horizon - self.begins_at(s), 1)
        # The codes' scale is about one, whatever that of the images.
        second = shared_settings(s, VAESettings, sigma=1.0, learn_sigma=True, horizon=left)
        self.second = VAE(LatentModel(decoder, None, d, second.sigma), encoder, second)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> TwoStageVAE:
        """A fresh learner with these networks and these settings."""
        horizon = max(cls.begins_at(settings), 1)
        first = shared_settings(settings, VAESettings, learn_sigma=True, horizon=horizon)
        return cls(VAE.build(networks, first), settings, networks)

    def learn(
        self, z: Tensor, x: Tensor, index: Tensor, generator: torch.Generator | None
    ) -> Metrics:
        self.second.synchronize = self.synchronize
        metrics = self.second.step(z, index, generator)
        return {f"second_{key}": value for key, value in metrics.items()}

    def draw_prior(
        self, n: int, source: str, steps: int | None, generator: torch.Generator | None
    ) -> Tensor:
        """z = g2(u) + sigma2 w of u, w ~ N(0, I), ``(n, d)``."""
        z: Tensor = self.second.sample(n, generator=generator)
        w = torch.empty_like(z).normal_(generator=generator)
        return z + self.second.log_sigma.exp() * w

    def resume_state(self) -> dict[str, Any]:
        """What the next iteration depends on besides the weights, of both stages."""
        return {**super().resume_state(), "second": self.second.resume_state()}

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Takes back what `resume_state` gave."""
        super().load_resume_state(state)
        self.second.load_resume_state(state["second"])


class SkipMLP(nn.Module):
    """Three hidden layers with ReLU, and an output layer that sees the input beside them.

    Args:
        inputs: size of the input.
        width: size of the hidden layers.
        outputs: size of the output.
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.body = mlp((inputs, width, width, width), "relu", last="relu")
        self.head = nn.Linear(width + inputs, outputs)

    def forward(self, z: Tensor) -> Tensor:
        """``(B, outputs)`` of z ``(B, inputs)``."""
        y: Tensor = self.head(torch.cat([self.body(z), z], 1))
        return y
