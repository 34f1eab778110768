"""The noise-contrastive prior: a VAE whose prior is corrected by a classifier of its codes.

Aneja, Schwing, Kautz and Vahdat, "A Contrastive Learning Approach for Training Variational
Autoencoder Priors", NeurIPS 2021. No public code is known; where the paper is silent the choices
are ours.
"""

from __future__ import annotations

__all__ = ["NCPVAE", "NCPSettings", "contrast"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from damc.kernels.langevin import Langevin
from damc.latent import EnergyPrior
from damc.learn.learner import Learner
from damc.learn.parts import Metrics
from damc.learn.settings import ModelSettings
from damc.learn.sources import Draw, Infer, energy_draw
from damc.learn.stages import Stages
from damc.learn.vae import VAE, VAESettings
from damc.nets import mlp_energy
from damc.nets.networks import Networks
from damc.randomness import normal_like


@dataclass(frozen=True)
class NCPSettings(ModelSettings):
    """Choices of the noise-contrastive prior."""

    sigma: float = 0.5**0.5
    first: float = 0.7  # share of the horizon that trains the VAE
    proposals: int = 1000  # points of N(0, I) from which one is resampled
    prior_step_size: float = 0.4  # of the source "energy"
    prior_sample_steps: int = 100
    energy_rate: float = 1e-4  # of the classifier
    horizon: int = 200_000  # iterations of both stages together
    score_draws: int = 10


class NCPVAE(Learner):
    """A VAE, then a classifier D between its codes and N(0, I), which becomes its prior.

    With D(z) = sigmoid(-E(z)), the second stage minimizes

        -E_x E_q(z|x) log D(z) - E_N(0,I) log(1 - D(z)),

    whose optimum is exp(-E(z)) = D / (1 - D) = r(z), the density ratio of the codes of all
    images, the aggregate posterior, to N(0, I). The prior is p(z) = r(z) N(z; 0, I), the energy
    prior of the rest of this library, here learned without a chain.

    Samples: "resampling" draws `proposals` points of N(0, I) for each and keeps one of them with
    probability proportional to r, "energy" runs Langevin on p(z) from N(0, I), "gaussian" leaves
    the correction out.

    Args:
        base: the VAE.
        energy: E, any module from z ``(B, d)`` to ``(B,)``.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "ncp-vae"
    about: ClassVar[str] = "VAE, then a noise-contrastive prior on its codes"
    settings_type: ClassVar[Any] = NCPSettings
    recipe_settings: ClassVar[tuple[str, ...]] = (
        "prior_step_size",
        "prior_sample_steps",
        "energy_rate",
    )
    inference: ClassVar[str | None] = "encoder"
    score: ClassVar[str | None] = "bound"
    stage_learners: ClassVar[tuple[str, ...]] = ("base",)

    def __init__(
        self,
        base: VAE,
        energy: nn.Module,
        settings: NCPSettings,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(settings, networks)
        s = settings
        self.base = base
        self.corrected = EnergyPrior(energy)
        self.stages = Stages(s.first, s.horizon)
        self.kernel = Langevin(s.prior_step_size, s.prior_sample_steps)
        rate = self.stages.rate(s.energy_rate, s.decay, 2)
        self.optimizers.add("energy", energy.parameters(), rate, betas=s.betas)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> NCPVAE:
        """A fresh learner with these networks and these settings."""
        s = settings
        horizon = max(Stages(s.first, s.horizon).begin, 1)
        shared = s.block(ModelSettings, horizon=horizon, score_draws=s.score_draws)
        first = VAESettings(**shared)
        base = VAE.build(networks, first)
        energy = networks.build_energy() or mlp_energy(networks.latent_dim)
        return cls(base, energy, s, networks)

    @property
    def prior(self) -> EnergyPrior:
        """p(z) = r(z) N(z; 0, I)."""
        return self.corrected

    @property
    def energy(self) -> nn.Module:
        """E = -log r."""
        assert self.corrected.energy is not None
        return self.corrected.energy

    @property
    def ready(self) -> bool:
        """Whether the prior has begun to learn."""
        return self.iteration > self.stages.begin

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        if self.iteration < self.stages.begin:
            metrics = self.base.step(x, index, generator)
        else:
            metrics = self.update_prior(self.base.codes(x, index, generator), generator)
        self.iteration += 1
        return metrics

    def update_prior(self, z: Tensor, generator: torch.Generator | None) -> Metrics:
        """One step of the classifier between codes z ``(B, d)`` and N(0, I)."""
        noise = normal_like(z, generator)
        e_pos, e_neg = self.energy(torch.cat([z, noise])).chunk(2)
        loss = contrast(e_pos, e_neg)
        return {
            "contrast": loss.detach(),
            "energy_positive": e_pos.detach().mean(),
            "energy_difference": (e_pos.mean() - e_neg.mean()).detach(),
            "energy_gradient": self.update("energy", loss),
        }

    def draws(self) -> Mapping[str, Draw]:
        """The corrected prior in two ways once it has learned, and N(0, I)."""
        gaussian = super().draws()
        if not self.ready:
            return gaussian
        energy = energy_draw(self.corrected, self.kernel, gaussian["gaussian"])
        return {"resampling": self._resampled, "energy": energy, **gaussian}

    def inferences(self) -> Mapping[str, Infer]:
        """The encoder's mean."""
        return self.base.inferences()

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The bound on -log p(x) under the corrected prior, which adds E_q(z|x) E(z), ``(B,)``."""
        score = self.base.anomaly_score(x, generator=generator)
        if not self.ready:
            return score
        draws = self.settings.score_draws
        index = torch.arange(len(x))
        for _ in range(draws):
            score += self.energy(self.base.codes(x, index, generator)) / draws
        return score

    def _resampled(self, n: int, _: int | None, generator: torch.Generator | None) -> Tensor:
        """Of `proposals` points of N(0, I) one, with probability proportional to r, ``(n, d)``."""
        d, m = self.model.latent_dim, self.settings.proposals
        weight = next(self.energy.parameters())
        kept = []
        together = max(1, 100_000 // m)  # so many points at a time bound the memory
        for start in range(0, n, together):
            z = weight.new_empty(min(together, n - start), m, d).normal_(generator=generator)
            energy = self.energy(z.flatten(0, 1)).view(z.shape[:2])
            # Of points with Gumbel noise added to their log-weights, the largest is a fair draw.
            gumbel = -torch.empty_like(energy).exponential_(generator=generator).log()
            kept.append(z[torch.arange(len(z), device=z.device), (gumbel - energy).argmax(1)])
        return torch.cat(kept)


def contrast(e_pos: Tensor, e_neg: Tensor) -> Tensor:
    """The logistic loss of E, -log D(z_pos) - log(1 - D(z_neg)) with D = sigmoid(-E).

    2 log 2 is what E = 0 gets, a classifier that knows nothing.

    Args:
        e_pos: energies of points of the target, ``(B,)``.
        e_neg: energies of points of the noise, ``(B,)``.
    """
    return softplus(e_pos).mean() + softplus(-e_neg).mean()
