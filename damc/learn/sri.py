"""Short-run inference: a decoder learned from short posterior chains from noise.

Nijkamp, Pang, Han, Zhou, Zhu and Wu, "Learning Multi-layer Latent Variable Model via Variational
Optimization of Short Run MCMC for Approximate Inference", ECCV 2020.
"""

from __future__ import annotations

__all__ = ["SRI", "HierarchicalSRI", "SRISettings"]

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from damc.latent import LatentModel
from damc.learn.learner import Learner
from damc.learn.parts import Chain, Metrics, decoder_step
from damc.learn.settings import ChainSettings
from damc.learn.starts import NoiseStarts, PersistentStarts
from damc.nets.hierarchy import layer_sizes
from damc.nets.networks import Networks


@dataclass(frozen=True)
class SRISettings(ChainSettings):
    """Choices of SRI; the defaults are its authors' for 5 layers on CelebA at 32 pixels.

    They use fixed step sizes in the code, and so does this; the paper tunes them variationally.
    """

    sigma: float = 0.15
    posterior_steps: int = 25
    posterior_step_size: float = 0.05
    decoder_rate: float = 8e-5
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class SRI(Learner):
    """A decoder under N(0, I), by

        down the gradient of  E |x - g(z)|^2,    z ~ p(z | x) by a short chain from N(0, I).

    It is LEBM without an energy, and ABP without memory.

    Args:
        model: decoder and sigma.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "sri"
    about: ClassVar[str] = "Gaussian prior; short posterior chains from noise"
    settings_type: ClassVar[Any] = SRISettings
    inference: ClassVar[str | None] = "chain"
    score: ClassVar[str | None] = "joint"
    posterior_starts: ClassVar[type[NoiseStarts | PersistentStarts]] = NoiseStarts

    def __init__(
        self,
        model: LatentModel,
        settings: Any = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or self.settings_type(sigma=model.sigma)
        super().__init__(s, networks, model)
        starts = self.posterior_starts(model.latent_dim)
        self.chains = {"posterior": Chain(starts, s.posterior_moves, model.posterior)}
        rate = s.learning_rate(s.decoder_rate)
        self.optimizers.add("decoder", model.decoder.parameters(), rate, betas=s.betas)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        return cls(networks.build_model(settings.sigma, energy=False), settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        z, info = self.chains["posterior"].run(x, index, generator)
        updates = self.settings.decoder_updates
        metrics = decoder_step(self.model, x, z, self.update, updates=updates)
        self.iteration += 1
        return {"displacement": info.displacement, **metrics}

    def codes(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples of p(z | x), ``(B, d)``, by the method's own chains: for a second stage."""
        return self.chains["posterior"].run(x, index, generator)[0]


class HierarchicalSRI(SRI):
    """SRI with a decoder of 5 layers of latent variables, SRI (L = 5).

    z = (z_1, ..., z_5), each part N(0, I), is one vector to the chains, longer than the networks'
    latent size: of the paper's 416 numbers if that is 100, else in proportion. The top part passes
    through every layer, each further part joins one layer lower (`damc.nets.hierarchy`). Where
    the networks have a convolutional decoder, it is the paper's five-layer one instead; else the
    layers stand before the networks' own decoder.
    """

    name: ClassVar[str] = "sri-l5"
    about: ClassVar[str] = "SRI with five layers of latent variables"

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> HierarchicalSRI:
        """A fresh learner with five layers of latent variables."""
        sizes = layer_sizes(networks.latent_dim)
        decoder = networks.build_hierarchy(sizes)
        return cls(LatentModel(decoder, None, sum(sizes), settings.sigma), settings, networks)
