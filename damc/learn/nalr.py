"""NALR-LEBM: long chains first, the amortizer afterwards. The paper's non-amortized ablation.

Yu et al., "Learning Energy-Based Prior Model with Diffusion-Amortized MCMC", NeurIPS 2023,
section 4.4.
"""

from __future__ import annotations

__all__ = ["NALR", "NALRSettings"]

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.latent import LatentModel
from damc.learn.damc import VANILLA_STEPS
from damc.learn.learner import Learner
from damc.learn.parts import Chain, Metrics, decoder_step, energy_step, sampler_step
from damc.learn.settings import ChainSettings, PriorSettings
from damc.learn.sources import (
    Draw,
    Infer,
    amortizer_draw,
    amortizer_inference,
    first_guess,
    noise_inference,
)
from damc.learn.stages import Stages
from damc.learn.starts import NoiseStarts, PersistentStarts
from damc.nets.networks import Networks


@dataclass(frozen=True)
class NALRSettings(ChainSettings, PriorSettings):
    """Choices of NALR; the defaults are those of the DAMC authors' script.

    They train the model for 25,000 iterations before the amortizer; here for a share of the
    horizon.
    """

    first: float = 0.7  # share of the horizon in which the model is learned
    distillation_updates: int = 1  # gradient steps of the amortizer in an iteration after that
    p_uncond: float = 0.2
    unconditional: str = "share"  # "both": losses with and without x on the whole batch, summed
    amortizer_rate: float = 2e-4
    amortizer_weight_decay: float = 1e-2
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time
    horizon: int = 100_000  # iterations in all


class NALR(Learner):
    """A latent energy-based model by persistent posterior chains, then its amortizer.

    First the decoder and the energy are learned as by LEBM, except that the posterior chain of
    each image continues where it last ended (its prior chains start at noise). Then both are
    frozen, the posterior chains go on, and the amortizer alone learns their ends. Rates fall over
    the stage to which they belong.

    Until the second stage has begun the amortizer is untrained: samples come from the energy, and
    inference starts at noise.

    Args:
        model: decoder, energy prior and sigma.
        amortizer: q(z | x) and q(z); its encoder embeds images.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "nalr"
    about: ClassVar[str] = "energy prior by persistent chains; the amortizer distilled afterwards"
    settings_type: ClassVar[Any] = NALRSettings
    recipe_settings: ClassVar[tuple[str, ...]] = (
        "p_uncond",
        "unconditional",
        "amortizer_rate",
        "amortizer_weight_decay",
        "test_steps",
    )
    inference: ClassVar[str | None] = "chain"
    score: ClassVar[str | None] = "joint"

    def __init__(
        self,
        model: LatentModel,
        amortizer: Amortizer,
        settings: NALRSettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or NALRSettings(sigma=model.sigma)
        super().__init__(s, networks, model)
        self.amortizer = amortizer
        self.stages = Stages(s.first, s.horizon)
        d = model.latent_dim
        self.chains = {
            "posterior": Chain(PersistentStarts(d), s.posterior_moves, model.posterior),
            "prior": Chain(NoiseStarts(d), s.prior_moves, model.prior_of),
        }
        add, rate = partial(self.optimizers.add, betas=s.betas), self.stages.rate
        add("decoder", model.decoder.parameters(), rate(s.decoder_rate, s.decay, 1))
        if model.prior.energy is not None:
            add("energy", model.prior.energy.parameters(), rate(s.energy_rate, s.decay, 1))
        add(
            "amortizer",
            amortizer.parameters(),
            rate(s.amortizer_rate, s.decay, 2),
            weight_decay=s.amortizer_weight_decay,
        )

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> NALR:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma)
        return cls(model, networks.build_amortizer(), settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        z, info = self.chains["posterior"].run(x, index, generator)
        metrics = {"displacement": info.displacement, "z_norm": z.square().mean()}
        if self.iteration < self.stages.begin:
            metrics |= self.update_model(x, z, generator)
        else:
            s = self.settings
            metrics |= sampler_step(
                self.amortizer,
                x,
                z,
                generator,
                update=self.update,
                updates=s.distillation_updates,
                p_uncond=s.p_uncond,
                unconditional=s.unconditional,
            )
        self.iteration += 1
        return metrics

    def update_model(self, x: Tensor, z: Tensor, generator: torch.Generator | None) -> Metrics:
        """One step of the decoder and the energy, with z ``(B, d)`` ~ p(z | x)."""
        s, energy = self.settings, self.model.prior.energy
        metrics = decoder_step(self.model, x, z, self.update, updates=s.decoder_updates)
        if energy is None:
            return metrics
        z_neg, _ = self.chains["prior"].run(x, torch.arange(len(x)), generator)
        return metrics | energy_step(energy, z, z_neg, self.update, penalty=s.energy_penalty)

    @property
    def ready(self) -> bool:
        """Whether the amortizer has begun to learn."""
        return self.iteration > self.stages.begin

    def draws(self) -> Mapping[str, Draw]:
        """q(z) once it has learned, Langevin on the energy, and N(0, I)."""
        prior = super().draws()
        return {"amortizer": amortizer_draw(self.amortizer), **prior} if self.ready else prior

    def inferences(self) -> Mapping[str, Infer]:
        """q(z | x) once it has learned and moves on the posterior, or those from N(0, I)."""
        model, s = self.model, self.settings
        noise = {"gaussian": noise_inference(model, s.posterior_step_size, VANILLA_STEPS)}
        if not self.ready:
            return noise
        q = amortizer_inference(model, self.amortizer, s.posterior_step_size, s.test_steps)
        return {"amortizer": q, **noise}

    @property
    def amortized(self) -> bool:
        """Whether the amortizer has begun to learn."""
        return self.ready

    def first_guess(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """z ~ q(z | x) by few steps, and a single posterior move, once q has learned."""
        if not self.ready:
            return self.infer(x, generator=generator)
        step_size = self.settings.posterior_step_size
        return first_guess(self.model, self.amortizer, x, step_size, generator)
