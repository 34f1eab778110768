"""VI-LEBM: a latent energy-based model whose posterior is a Gaussian encoder.

An ablation of Yu et al., "Learning Energy-Based Prior Model with Diffusion-Amortized MCMC",
NeurIPS 2023, for which no code was published; the objective is that of Pang et al. (2020) with
the posterior chains replaced by the encoder of Kingma and Welling (2014).
"""

from __future__ import annotations

__all__ = ["VILEBM", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from damc.latent import LatentModel
from damc.learn.learner import Metrics
from damc.learn.prior import PriorLearner, PriorSettings
from damc.learn.vae import EncoderInference, divergence, draw, gaussian_encoder

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings(PriorSettings):
    """Choices of VI-LEBM: those of Algorithm 1 for the prior; one rate for encoder and decoder."""


class VILEBM(EncoderInference, PriorLearner):
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

    inference: ClassVar[str | None] = "encoder"
    score: ClassVar[str | None] = "joint"
    name: ClassVar[str] = "vi-lebm"
    about: ClassVar[str] = "energy prior with a Gaussian encoder in place of posterior chains"
    settings_type: ClassVar[Any] = Settings

    def __init__(
        self,
        model: LatentModel,
        encoder: nn.Module,
        settings: Settings | None = None,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(model, settings, networks)
        self.encoder = encoder
        both = nn.ModuleList([model.decoder, encoder])
        self.learn("autoencoder", both, self.settings.decoder_rate)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> VILEBM:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma)
        return cls(model, gaussian_encoder(networks), settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        model, energy = self.model, self.model.prior.energy
        m, log_v = self.encode(x)
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
        metrics |= self.update_energy(z.detach(), self.negatives(x, generator))
        self.iteration += 1
        return metrics

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """-log p~(z, x) at the encoder's mean, ``(B,)``: higher is more anomalous."""
        return -self.model.log_joint(self.infer(x), x)
