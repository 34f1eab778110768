"""Adaptive contrastive estimation: an energy prior as a product of density ratios, in stages.

Xiao and Han, "Adaptive Multi-stage Density Ratio Estimation for Learning Latent Space Energy-based
Model", NeurIPS 2022. No public code is known. Our reading of it, where it leaves a choice:

- The stages share the horizon equally. During stage k the prior, that of posterior chains too, is
  the product of the ratios 1 ... k-1, which no longer change; ratio k joins it when k ends.
- Prior samples of stage k are short Langevin chains on that product from N(0, I). In the first
  stage the product is empty and N(0, I) itself is drawn, without a chain.
- Posterior chains start at N(0, I) in every iteration, and the decoder learns from their ends
  throughout, so that later ratios also make up for what moved since the earlier ones.
- After the horizon every ratio is in the prior, and only the decoder goes on learning.
"""

from __future__ import annotations

__all__ = ["AdaptiveCE", "AdaptiveCESettings"]

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from damc.errors import BadInput
from damc.kernels.langevin import Langevin
from damc.latent import LatentModel
from damc.learn.learner import Learner
from damc.learn.ncp import contrast
from damc.learn.optimizers import LearningRate
from damc.learn.parts import Chain, Metrics, decoder_step
from damc.learn.settings import ChainSettings
from damc.learn.starts import NoiseStarts, standard_normal
from damc.nets import mlp_energy
from damc.nets.networks import Networks
from damc.nets.ratios import Ratios


@dataclass(frozen=True)
class AdaptiveCESettings(ChainSettings):
    """Choices of adaptive contrastive estimation; chains and rates are those of Algorithm 1."""

    prior_steps: int = 60  # T of the prior chain
    prior_step_size: float = 0.4
    energy_rate: float = 1e-4  # of every ratio, within its stage
    prior_sample_steps: int = 100  # prior moves when images are drawn from the energy
    prior_sample_step_size: float | None = None  # of those; None: prior_step_size
    stages: int = 4  # ratios: four times the parameters of one energy, as the DAMC paper counts
    horizon: int = 200_000  # iterations of all stages together
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class AdaptiveCE(Learner):
    """A decoder from posterior chains, an energy prior from classifiers, one after the other.

    Stage k learns E_k by the logistic loss between posterior and prior samples,

        -E_p(z|x) log D_k(z) - E_p_k(z) log(1 - D_k(z)),    D_k = sigmoid(-E_k),

    whose optimum exp(-E_k) is the ratio of the aggregate posterior to the prior so far, p_k. Then
    p_k+1(z) = exp(-E_k(z)) p_k(z), from p_1 = N(0, I). The nearer two distributions are, the better
    a classifier can tell their ratio, which is why several small steps beat one large one; with
    ``stages = 1`` this is a noise-contrastive prior, learned beside its decoder.

    Args:
        model: the decoder, sigma, and a prior whose energy is `Ratios`.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "adaptive-ce"
    about: ClassVar[str] = "energy prior as a product of density ratios, learned in stages"
    settings_type: ClassVar[Any] = AdaptiveCESettings
    recipe_settings: ClassVar[tuple[str, ...]] = (
        "prior_steps",
        "prior_step_size",
        "energy_rate",
        "prior_sample_steps",
        "prior_sample_step_size",
    )
    inference: ClassVar[str | None] = "chain"
    score: ClassVar[str | None] = "joint"

    def __init__(
        self,
        model: LatentModel,
        settings: AdaptiveCESettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        ratios = model.prior.energy
        if not isinstance(ratios, Ratios):
            raise BadInput(f"the prior's energy must be Ratios, got {type(ratios).__name__}")
        s = settings or AdaptiveCESettings(sigma=model.sigma, stages=len(ratios.energies))
        if len(ratios.energies) != s.stages:
            raise BadInput(f"got {len(ratios.energies)} ratios for {s.stages} stages")
        super().__init__(s, networks, model)
        self.ratios: Ratios
        object.__setattr__(self, "ratios", ratios)  # a second name, not a second submodule
        starts = NoiseStarts(model.latent_dim)
        prior = Langevin(s.prior_step_size, s.prior_steps)
        self.chains = {
            "posterior": Chain(starts, s.posterior_moves, model.posterior),
            "prior": Chain(starts, prior, model.prior_of),
        }
        add = partial(self.optimizers.add, betas=s.betas)
        add("decoder", model.decoder.parameters(), s.learning_rate(s.decoder_rate))
        length = max(s.horizon // s.stages, 1)
        for k, energy in enumerate(ratios.energies):
            start = -(-k * s.horizon // s.stages)
            rate = LearningRate(s.energy_rate, s.decay, length, start=start)
            add(f"ratio{k}", energy.parameters(), rate)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> AdaptiveCE:
        """A fresh learner with these networks and these settings."""
        d = networks.latent_dim
        energies = [networks.build_energy() or mlp_energy(d) for _ in range(settings.stages)]
        model = LatentModel(networks.build_decoder(), Ratios(*energies), d, settings.sigma)
        return cls(model, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s = self.settings
        self.ratios.finish(min(s.stages, self.iteration * s.stages // s.horizon))
        z_pos, info = self.chains["posterior"].run(x, index, generator)
        metrics = {"displacement": info.displacement}
        metrics |= decoder_step(self.model, x, z_pos, self.update, updates=s.decoder_updates)
        if self.ratios.finished < s.stages:
            metrics |= self.update_ratio(z_pos, self.negatives(x, generator))
        self.iteration += 1
        if self.iteration == s.horizon:
            self.ratios.finish(s.stages)
        return metrics

    def negatives(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Samples of the prior so far, ``(B, d)``: before the first ratio, of N(0, I) itself."""
        if self.ratios.finished == 0:
            return standard_normal(x, self.model.latent_dim, generator)
        return self.chains["prior"].run(x, torch.arange(len(x)), generator)[0]

    def update_ratio(self, z_pos: Tensor, z_neg: Tensor) -> Metrics:
        """One step of the ratio of this stage, between z_pos ``(B, d)`` and z_neg ``(B, d)``."""
        stage = self.ratios.finished
        energy = self.ratios.energies[stage]
        e_pos, e_neg = energy(torch.cat([z_pos, z_neg])).split([len(z_pos), len(z_neg)])
        loss = contrast(e_pos, e_neg)
        return {
            "contrast": loss.detach(),
            "energy_difference": (e_pos.mean() - e_neg.mean()).detach(),
            "energy_gradient": self.update(f"ratio{stage}", loss),
        }
