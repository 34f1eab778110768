"""A diffusion amortizer in the latent space of another model, pre-trained and left as it is.

The appendix of Yu et al. 2023 ("Learning Energy-Based Prior Model with Diffusion-Amortized MCMC")
compares Algorithm 1 with diffusion models learned in the latent spaces of a VAE (Kingma and
Welling 2014) and of alternating back-propagation (ABP, Han et al. 2017).
"""

from __future__ import annotations

__all__ = ["ABPDiffusion", "LatentDiffusion", "LatentDiffusionSettings", "VAEDiffusion"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.learn.abp import ABP, ABPSettings
from damc.learn.learner import Learner
from damc.learn.parts import Metrics, sampler_step
from damc.learn.settings import ModelSettings
from damc.learn.sources import Draw, Infer, amortizer_draw, amortizer_inference
from damc.learn.stages import Stages
from damc.learn.vae import VAE, VAESettings
from damc.nets.networks import Networks


@dataclass(frozen=True)
class LatentDiffusionSettings(ModelSettings):
    """Choices of a diffusion amortizer in a latent space; those of Algorithm 1 as defaults."""

    first: float = 0.7  # share of the horizon that trains the base
    posterior_steps: int = 30  # of ABP's chains
    posterior_step_size: float = 0.1
    updates: int = 6  # M gradient steps of the amortizer
    p_uncond: float = 0.2
    amortizer_rate: float = 2e-4
    amortizer_weight_decay: float = 1e-4
    horizon: int = 200_000  # iterations of both stages together
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time

    def first_stage(self) -> dict[str, Any]:
        """Settings of the base, whose rate falls over the first stage."""
        begin = Stages(self.first, self.horizon).begin
        return self.block(ModelSettings, horizon=max(begin, 1))


class LatentDiffusion(Learner):
    """Pre-trains a base, then distills its posterior samples into an amortizer.

    The second stage minimizes the denoising loss (`Amortizer.loss`, equation 7) of q(z | x) and
    q(z) on draws z of the base's posterior of x. Unlike in Algorithm 1, what is learned about q
    never comes back to the decoder, nor to where the draws start. Samples are g(z) with z ~ q(z);
    inference is q(z | x) and `test_steps` moves on the base's posterior. Until the second stage
    has begun, both are the base's own.

    Args:
        base: the learner to pre-train, with its decoder in `model` and samples z of p(z | x) by
            `codes`.
        amortizer: q(z | x) and q(z); its encoder embeds images.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    settings_type: ClassVar[Any] = LatentDiffusionSettings
    recipe_settings: ClassVar[tuple[str, ...]] = (
        "posterior_steps",
        "posterior_step_size",
        "updates",
        "p_uncond",
        "amortizer_rate",
        "amortizer_weight_decay",
        "test_steps",
    )
    inference: ClassVar[str | None] = "chain"
    score: ClassVar[str | None] = "joint"
    stage_learners: ClassVar[tuple[str, ...]] = ("base",)

    def __init__(
        self,
        base: VAE | ABP,
        amortizer: Amortizer,
        settings: LatentDiffusionSettings,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(settings, networks)
        s = settings
        self.base, self.amortizer = base, amortizer
        self.stages = Stages(s.first, s.horizon)
        self.optimizers.add(
            "amortizer",
            amortizer.parameters(),
            self.stages.rate(s.amortizer_rate, s.decay, 2),
            betas=s.betas,
            weight_decay=s.amortizer_weight_decay,
        )

    @classmethod
    def build_base(cls, networks: Networks, settings: LatentDiffusionSettings) -> VAE | ABP:
        """The learner to pre-train."""
        raise NotImplementedError

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        base = cls.build_base(networks, settings)
        return cls(base, networks.build_amortizer(), settings, networks)

    @property
    def ready(self) -> bool:
        """Whether the amortizer has begun to learn."""
        return self.iteration > self.stages.begin

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        if self.iteration < self.stages.begin:
            metrics = self.base.step(x, index, generator)
        else:
            s, z = self.settings, self.base.codes(x, index, generator)
            choices = {"updates": s.updates, "p_uncond": s.p_uncond}
            metrics = sampler_step(self.amortizer, x, z, generator, update=self.update, **choices)
            metrics["z_norm"] = z.square().mean()
        self.iteration += 1
        return metrics

    def draws(self) -> Mapping[str, Draw]:
        """q(z) once it has learned, and N(0, I)."""
        gaussian = super().draws()
        return {"amortizer": amortizer_draw(self.amortizer), **gaussian} if self.ready else gaussian

    def inferences(self) -> Mapping[str, Infer]:
        """q(z | x) and moves on the posterior once it has learned; until then the base's own."""
        if not self.ready:
            return self.base.inferences()
        q, s = self.amortizer, self.settings
        infer = amortizer_inference(self.model, q, s.posterior_step_size, s.test_steps)
        return {"amortizer": infer}


class VAEDiffusion(LatentDiffusion):
    """In the latent space of a VAE: z ~ N(m(x), diag v(x)), drawn anew for each batch."""

    name: ClassVar[str] = "damc-vae"
    about: ClassVar[str] = "diffusion amortizer in the latent space of a pre-trained VAE"

    @classmethod
    def build_base(cls, networks: Networks, settings: LatentDiffusionSettings) -> VAE:
        """A VAE."""
        return VAE.build(networks, VAESettings(**settings.first_stage()))


class ABPDiffusion(LatentDiffusion):
    """In the latent space of ABP: z from the images' chains, which go on under a fixed decoder."""

    name: ClassVar[str] = "damc-abp"
    about: ClassVar[str] = "diffusion amortizer in the latent space of a pre-trained ABP"

    @classmethod
    def build_base(cls, networks: Networks, settings: LatentDiffusionSettings) -> ABP:
        """An ABP."""
        first = ABPSettings(
            **settings.first_stage(),
            posterior_steps=settings.posterior_steps,
            posterior_step_size=settings.posterior_step_size,
        )
        return ABP.build(networks, first)
