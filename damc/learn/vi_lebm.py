"""VI-LEBM: a latent energy-based model whose posterior is a Gaussian encoder.

An ablation of Yu et al., "Learning Energy-Based Prior Model with Diffusion-Amortized MCMC",
NeurIPS 2023, for which no code was published; the objective is that of Pang et al. (2020) with
the posterior chains replaced by the encoder of Kingma and Welling (2014).
"""

from __future__ import annotations

__all__ = ["VILEBM", "VILEBMSettings"]

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from damc.latent import LatentModel
from damc.learn.learner import Learner
from damc.learn.parts import Chain, Metrics, energy_step
from damc.learn.settings import PriorSettings
from damc.learn.sources import Infer
from damc.learn.starts import NoiseStarts
from damc.learn.vae import divergence, draw
from damc.nets.networks import Networks


@dataclass(frozen=True)
class VILEBMSettings(PriorSettings):
    """Choices of VI-LEBM: those of Algorithm 1 for the prior; one rate for encoder and decoder."""


class VILEBM(Learner):
    """Encoder, decoder and energy, by the bound on -log p(x)

        E_q(z|x)[ |x - g(z)|^2 / (2 sigma^2) + E(z) ] + KL(q(z|x) || N(0, I)) + log Z,

    with q(z|x) = N(m(x), diag v(x)) and Z the prior's normalizer. Encoder and decoder go down its
    gradient through draws of q; the gradient of log Z to the energy is -E_p(z) E(z), over Langevin
    chains on the prior from N(0, I). The loss is the bound times 2 sigma^2, as the VAE's. With an
    energy of zero this is the VAE; with posterior chains for q it is LEBM.

    Args:
        model: decoder, energy prior and sigma.
        encoder: any module from x ``(B, ...)`` to ``(B, 2 d)``, m beside log v.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "vi-lebm"
    about: ClassVar[str] = "energy prior with a Gaussian encoder in place of posterior chains"
    settings_type: ClassVar[Any] = VILEBMSettings
    inference: ClassVar[str | None] = "encoder"
    score: ClassVar[str | None] = "joint"

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        settings: VILEBMSettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or VILEBMSettings(sigma=model.sigma)
        super().__init__(s, networks, model)
        self.encoder = encoder
        starts = NoiseStarts(model.latent_dim)
        self.chains = {"prior": Chain(starts, s.prior_moves, model.prior_of)}
        add = partial(self.optimizers.add, betas=s.betas)
        if model.prior.energy is not None:
            add("energy", model.prior.energy.parameters(), s.learning_rate(s.energy_rate))
        both = [*model.decoder.parameters(), *encoder.parameters()]
        add("autoencoder", both, s.learning_rate(s.decoder_rate))

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> VILEBM:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma)
        encoder = networks.build_code_encoder(2 * networks.latent_dim)
        return cls(model, encoder, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, model, energy = self.settings, self.model, self.model.prior.energy
        m, log_v = self.encoder(x).chunk(2, 1)
        z = draw(m, log_v, generator)

        # Encoder and decoder: the bound, through z.
        error, kl = model.squared_error(x, z).mean(), divergence(m, log_v).mean()
        bound = error / (2 * model.sigma**2) + kl
        if energy is not None:
            bound = bound + energy(z).mean()
        metrics = {
            "mse": error.detach() / x[0].numel(),
            "divergence": kl.detach(),
            "bound": bound.detach(),  # without log Z
            "z_norm": z.detach().square().mean(),
            "autoencoder_gradient": self.update("autoencoder", 2 * model.sigma**2 * bound),
        }

        # Energy: down where the encoder draws, up where the prior does.
        if energy is not None:
            z_neg, _ = self.chains["prior"].run(x, torch.arange(len(x)), generator)
            z, penalty = z.detach(), s.energy_penalty
            metrics |= energy_step(energy, z, z_neg, self.update, penalty=penalty)
        self.iteration += 1
        return metrics

    def inferences(self) -> Mapping[str, Infer]:
        """The encoder's mean m(x)."""
        return {"encoder": lambda x, steps, noise, generator: self.encoder(x).chunk(2, 1)[0]}
