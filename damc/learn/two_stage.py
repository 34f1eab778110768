"""The two-stage VAE: a VAE with a learned sigma, then a second VAE on its codes.

Dai and Wipf, "Diagnosing and Enhancing VAE Models", ICLR 2019.
"""

from __future__ import annotations

__all__ = ["TwoStageSettings", "TwoStageVAE"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from damc.latent import LatentModel
from damc.learn.learner import Learner
from damc.learn.parts import Metrics
from damc.learn.settings import ModelSettings
from damc.learn.sources import Draw, Infer
from damc.learn.stages import Stages
from damc.learn.vae import VAE, VAESettings
from damc.nets.mlp import SkipMLP
from damc.nets.networks import Networks


@dataclass(frozen=True)
class TwoStageSettings(ModelSettings):
    """Choices of the two-stage VAE, its authors' code as defaults."""

    sigma: float = 1.0  # where the learned one starts
    first: float = 0.5  # share of the first stage: 70 of 140 epochs on CelebA
    hidden: int = 1024  # width of the second VAE's layers, at most 16 d
    decoder_rate: float = 1e-4  # of all networks
    beta1: float = 0.9
    horizon: int = 200_000  # iterations of both stages together
    score_draws: int = 10

    def vae(self, **changes: Any) -> VAESettings:
        """Settings of one of the two VAEs."""
        shared = self.block(ModelSettings, score_draws=self.score_draws, learn_sigma=True)
        return VAESettings(**shared | changes)


class TwoStageVAE(Learner):
    """A VAE of images whose sigma is learned, then a VAE of its codes.

    First stage, for images x of n pixels (`damc.learn.vae`):

        E_q(z|x)[ |x - g(z)|^2 / (2 sigma^2) + n log sigma ] + KL(q(z|x) || N(0, I)).

    The learned sigma keeps falling as reconstruction improves, so the codes concentrate where the
    data are and no longer look like N(0, I). The second stage learns their distribution by the same
    bound, with z ~ q(z|x) drawn anew in place of x, a latent u of the same size and a sigma of its
    own. Samples are u ~ N(0, I), z = g2(u) + sigma2 w, x = g(z). There are no chains.

    Args:
        base: the first VAE; its settings have `learn_sigma`.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "vae-2stage"
    about: ClassVar[str] = "VAE with a learned sigma, then a second VAE on its codes"
    settings_type: ClassVar[Any] = TwoStageSettings
    inference: ClassVar[str | None] = "encoder"
    score: ClassVar[str | None] = "bound"
    stage_learners: ClassVar[tuple[str, ...]] = ("base", "second")

    def __init__(
        self, base: VAE, settings: TwoStageSettings, networks: Networks | None = None
    ) -> None:
        super().__init__(settings, networks)
        s, d = settings, base.model.latent_dim
        self.base = base
        self.stages = Stages(s.first, s.horizon)
        width = min(s.hidden, 16 * d)
        decoder, encoder = SkipMLP(d, width, d), SkipMLP(d, width, 2 * d)
        # The scale of codes is about one, however large sigma is for images.
        second = s.vae(sigma=1.0, horizon=max(s.horizon - self.stages.begin, 1))
        self.second = VAE(LatentModel(decoder, None, d, second.sigma), encoder, second)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> TwoStageVAE:
        """A fresh learner with these networks and these settings."""
        begin = Stages(settings.first, settings.horizon).begin
        first = settings.vae(horizon=max(begin, 1))
        return cls(VAE.build(networks, first), settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        if self.iteration < self.stages.begin:
            metrics = self.base.step(x, index, generator)
        else:
            metrics = self.second.step(self.base.codes(x, index, generator), index, generator)
            metrics = {f"second_{key}": value for key, value in metrics.items()}
        self.iteration += 1
        return metrics

    def draws(self) -> Mapping[str, Draw]:
        """z = g2(u) + sigma2 w of u, w ~ N(0, I), once the second VAE has learned; and N(0, I)."""

        def second(n: int, _: int | None, generator: torch.Generator | None) -> Tensor:
            z = self.second.sample(n, generator=generator)
            w = torch.empty_like(z).normal_(generator=generator)
            return z + self.second.log_sigma.exp() * w

        gaussian = super().draws()
        return {"second": second, **gaussian} if self.iteration > self.stages.begin else gaussian

    def inferences(self) -> Mapping[str, Infer]:
        """The first encoder's mean."""
        return self.base.inferences()

    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The first VAE's bound on -log p(x), ``(B,)``."""
        return self.base.anomaly_score(x, generator=generator)
