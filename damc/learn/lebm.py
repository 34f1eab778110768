"""Latent energy-based models learned by short-run chains, and by persistent prior chains.

Pang, Han, Nijkamp, Zhu and Wu, "Learning Latent Space Energy-Based Prior Model", NeurIPS 2020.
Tieleman, "Training Restricted Boltzmann Machines using Approximations to the Likelihood
Gradient", ICML 2008, for chains that continue from one iteration to the next.
"""

from __future__ import annotations

__all__ = ["LEBM", "LEBMSettings", "PersistentLEBM"]

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from damc.latent import LatentModel
from damc.learn.learner import Learner
from damc.learn.parts import Chain, Metrics, decoder_step, energy_step
from damc.learn.settings import ChainSettings, PriorSettings
from damc.learn.starts import NoiseStarts, PersistentStarts, batch_places
from damc.nets.networks import Networks


@dataclass(frozen=True)
class LEBMSettings(ChainSettings, PriorSettings):
    """Choices of LEBM; the defaults are its authors' on SVHN, with a clip that they do without."""

    sigma: float = 0.3
    posterior_steps: int = 20
    decoder_rate: float = 1e-4
    energy_rate: float = 2e-5
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class LEBM(Learner):
    """Short-run LEBM (SR-LEBM): posterior and prior chains start at N(0, I) in every iteration.

        decoder:  down the gradient of  E |x - g(z)|^2,          z ~ p(z | x) by a short chain,
        energy:   down the gradient of  E E(z) - E E(z'),        z' ~ p(z) by a short chain.

    Without an energy in the model this is SRI; with starts at an amortizer it is DAMC.

    Args:
        model: decoder, prior and sigma.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "lebm"
    about: ClassVar[str] = "energy prior; short posterior and prior chains from noise (SR-LEBM)"
    settings_type: ClassVar[Any] = LEBMSettings
    inference: ClassVar[str | None] = "chain"
    score: ClassVar[str | None] = "joint"
    prior_starts: ClassVar[type[NoiseStarts | PersistentStarts]] = NoiseStarts

    def __init__(
        self,
        model: LatentModel,
        settings: LEBMSettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or LEBMSettings(sigma=model.sigma)
        super().__init__(s, networks, model)
        d = model.latent_dim
        self.chains = {
            "posterior": Chain(NoiseStarts(d), s.posterior_moves, model.posterior),
            "prior": Chain(self.prior_starts(d), s.prior_moves, model.prior_of),
        }
        add = partial(self.optimizers.add, betas=s.betas)
        add("decoder", model.decoder.parameters(), s.learning_rate(s.decoder_rate))
        if model.prior.energy is not None:
            add("energy", model.prior.energy.parameters(), s.learning_rate(s.energy_rate))

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        return cls(networks.build_model(settings.sigma), settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, model = self.settings, self.model
        z_pos, info = self.chains["posterior"].run(x, index, generator)
        metrics = {"displacement": info.displacement}
        metrics |= decoder_step(model, x, z_pos, self.update, updates=s.decoder_updates)
        if model.prior.energy is not None:
            places = batch_places(x, generator)
            z_neg, _ = self.chains["prior"].run(x, places, generator)
            energy, penalty = model.prior.energy, s.energy_penalty
            metrics |= energy_step(energy, z_pos, z_neg, self.update, penalty=penalty)
        self.iteration += 1
        return metrics


class PersistentLEBM(LEBM):
    """LEBM whose prior chains continue where they ended in the iteration before.

    There are as many as images in a batch. Their distribution follows the energy as it changes
    slowly, so that the energy meets samples of far longer chains for the price of short ones.
    """

    name: ClassVar[str] = "lebm-persistent"
    about: ClassVar[str] = "LEBM whose prior chains continue from one iteration to the next"
    prior_starts: ClassVar[type[NoiseStarts | PersistentStarts]] = PersistentStarts
