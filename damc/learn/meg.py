"""MEG: an energy of images, and a decoder of maximal entropy that samples it.

Kumar, Ozair, Goyal, Courville and Bengio, "Maximum Entropy Generators for Energy-Based Models",
2019. A data-space peer of DAMC: no latent prior is learned and no chain is run.
"""

from __future__ import annotations

__all__ = ["MEG", "MEGSettings"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.learn.learner import Learner
from damc.learn.parts import Metrics
from damc.learn.processes import of_all_processes
from damc.learn.settings import OptimizerSettings
from damc.learn.sources import Draw, noise_draw
from damc.nets.joint import Joint, image_energy, without_norm
from damc.nets.networks import Networks
from damc.randomness import batch_rows, own_rows, whole_batch


@dataclass(frozen=True)
class MEGSettings(OptimizerSettings):
    """Every choice of MEG, the authors' code for anomalies among MNIST as defaults."""

    score_penalty: float = 100.0  # lambda; 10 for natural images
    information: float = 1.0  # weight of the bound on the decoder's entropy
    energy_updates: int = 5  # of the energy for each one of the decoder
    decoder_rate: float = 1e-4  # of the statistics network as well
    energy_rate: float = 1e-4
    beta2: float = 0.9

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's."""
        return self.beta1, self.beta2


class MEG(Learner):
    """Maximum-entropy generators: energy E(x), decoder g(z) with z ~ N(0, I), statistics H(x, z).

    The energy falls on data and rises on the decoder's images, and is flat at the data:

        E:     mean E(x) - mean E(g(z)) + score_penalty mean |grad_x E(x)|^2

    with the squared gradient summed over channels and averaged over pixels. The decoder goes where
    the energy is low and keeps its images different: its entropy is the mutual information of z and
    g(z), of which H, which tells true pairs from pairs with z permuted, gives a lower bound (Hjelm
    et al. 2019):

        g, H:  mean E(g(z)) + information BCE(H(g(z), z) is true, H(g(z), z permuted) is not)

    One iteration is `energy_updates` of the first on one batch of data, with new images of the
    decoder in each, and one of the second. (The authors' code takes a new batch each time.)

    Args:
        decoder: g, from z `(B, d)` to images.
        energy: E, from images to `(B,)`.
        statistics: H, from images and latent points to logits `(B,)`.
        latent_dim: d.
        settings: the choices above.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "meg"
    about: ClassVar[str] = "energy of images with a decoder of maximal entropy, for anomalies"
    settings_type: ClassVar[Any] = MEGSettings
    recipe_settings: ClassVar[tuple[str, ...]] = ("energy_rate",)
    score: ClassVar[str | None] = "energy"

    def __init__(
        self,
        decoder: nn.Module,
        energy: nn.Module,
        statistics: nn.Module,
        latent_dim: int,
        settings: MEGSettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or MEGSettings()
        super().__init__(s, networks)
        self.decoder, self.energy, self.statistics = decoder, energy, statistics
        self.latent_dim = latent_dim
        self.optimizers.add(
            "energy", energy.parameters(), s.learning_rate(s.energy_rate), betas=s.betas
        )
        both = [*decoder.parameters(), *statistics.parameters()]
        self.optimizers.add("decoder", both, s.learning_rate(s.decoder_rate), betas=s.betas)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> MEG:
        """A fresh learner; energy and statistics see images through layers like the encoder's."""
        size = networks.embedding
        decoder = networks.build_decoder()
        energy = image_energy(without_norm(networks.build_encoder()), size)
        statistics = Joint(without_norm(networks.build_encoder()), size, networks.latent_dim)
        return cls(decoder, energy, statistics, networks.latent_dim, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, noise = self.settings, noise_draw(self.decoder, self.latent_dim)

        # The energy: lower on data, higher on the decoder's images, flat around the data.
        with torch.no_grad():
            fakes = self.decoder(noise(s.energy_updates * len(x), None, generator))
        x = x.detach().requires_grad_(s.score_penalty > 0)
        for fake in fakes.chunk(s.energy_updates):
            real = self.energy(x)
            difference = real.mean() - self.energy(fake).mean()
            score = score_norm(real, x) if s.score_penalty > 0 else real.new_zeros(())
            norm = self.update("energy", difference + s.score_penalty * score)
        metrics = {
            "energy_positive": real.detach().mean(),
            "energy_difference": difference.detach(),
            "score": score.detach(),
            "energy_gradient": norm,
        }

        # The decoder: towards low energy, with as much information about z as it can keep.
        z = noise(len(x), None, generator)
        other = shuffled(z, generator)
        fake = self.decoder(z)
        true, false = self.statistics(fake.repeat(2, 1, 1, 1), torch.cat([z, other])).chunk(2)
        information = (F.softplus(-true).mean() + F.softplus(false).mean()) / 2
        loss = self.energy(fake).mean() + s.information * information
        metrics["information_loss"] = information.detach()
        metrics["decoder_gradient"] = self.update("decoder", loss)

        self.iteration += 1
        return metrics

    def draws(self) -> Mapping[str, Draw]:
        """N(0, I)."""
        return {"gaussian": noise_draw(self.decoder, self.latent_dim)}

    def decode(self, z: Tensor) -> Tensor:
        """g(z), ``(B, C, H, W)``."""
        images: Tensor = self.decoder(z)
        return images

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """E(x), ``(B,)``: higher is more anomalous. Nothing in it is random."""
        energy: Tensor = self.energy(x)
        return energy


def shuffled(z: Tensor, generator: torch.Generator | None) -> Tensor:
    """The points z ``(B, d)`` of the batch in another order, those of all processes together."""
    n = batch_rows(len(z), generator)
    order = torch.randperm(n, generator=whole_batch(generator), device=z.device)
    return own_rows(of_all_processes(z)[order], generator)


def score_norm(energy: Tensor, x: Tensor) -> Tensor:
    """|grad_x E(x)|^2, summed over channels and averaged over pixels and images: one number.

    Args:
        energy: E(x) ``(B,)``, computed from x.
        x: images ``(B, C, H, W)`` that require a gradient.
    """
    (score,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return score.square().sum(1).mean()
