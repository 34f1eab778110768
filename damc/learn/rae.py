"""The regularized auto-encoder: no noise, a smooth decoder, a density of the codes afterwards.

Ghosh, Sajjadi, Vergari, Black and Schoelkopf, "From Variational to Deterministic Autoencoders",
ICLR 2020.
"""

from __future__ import annotations

__all__ = ["RAE", "RAESettings"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from damc.amortize.mixture import GaussianMixture
from damc.learn.learner import Learner
from damc.learn.parts import Metrics, squared_weights
from damc.learn.settings import OptimizerSettings
from damc.learn.sources import Draw, Infer
from damc.learn.starts import Store
from damc.nets.networks import Networks
from damc.randomness import normal_like


@dataclass(frozen=True)
class RAESettings(OptimizerSettings):
    """Choices of the RAE; the defaults are its authors' for CIFAR-10 with weight decay."""

    regularizer: str = "l2"  # of the decoder; "gradient", "spectral" or "none"
    beta: float = 1e-3  # weight of the mean of z^2; theirs: 0.03 with "spectral", 0.01 with "none"
    strength: float = 1e-6  # weight of the regularizer; theirs with "gradient": 1e-7
    components: int = 10  # of the mixture
    ring: int = 10_000  # how many of the latest codes the mixture is fitted to
    first: float = 0.9  # share of the horizon after which samples come from the whole mixture
    decoder_rate: float = 5e-4  # of encoder and decoder
    beta1: float = 0.9
    horizon: int = 200_000


class RAE(Learner):
    """A deterministic auto-encoder z = e(x), x ~ g(z), learned by

        mean over pixels of (x - g(z))^2 + beta mean(z^2) + strength R(g),

    for images in [0, 1] as its authors have them. R is the sum of squares of the decoder's
    weights ("l2"), or |dg/dz|^2, the sum of squares of the Jacobian, estimated without bias
    along one random direction ("gradient"); "spectral" has no R but a decoder whose layers are
    divided by their largest singular values. The loss is the above times 4 n, for images in
    [-1, 1] of n pixels: then its first term is the squared error of every other method.

    Afterwards a mixture of Gaussians is fitted to the codes of the training images, here the
    latest `ring` of them, and samples are g(z) with z from the mixture. Before `first` of the
    horizon, when the codes still move, samples come from a single Gaussian fitted to them; before
    the first iteration from N(0, I).

    Args:
        encoder: e, any module from x ``(B, ...)`` to ``(B, d)``.
        decoder: g, any module from z ``(B, d)`` to x.
        latent_dim: d.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "rae"
    about: ClassVar[str] = "regularized auto-encoder, and a mixture of Gaussians on its codes"
    settings_type: ClassVar[Any] = RAESettings
    inference: ClassVar[str | None] = "encoder"

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        latent_dim: int,
        settings: RAESettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or RAESettings()
        super().__init__(s, networks)
        if s.regularizer == "spectral":
            for layer in list(decoder.modules()):
                if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
                    spectral_norm(layer)
        self.encoder, self.decoder = encoder, decoder
        self.store = Store(s.ring, latent_dim)
        self._density: tuple[int, GaussianMixture] | None = None
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]
        rate = s.learning_rate(s.decoder_rate)
        self.optimizers.add("autoencoder", self.parameters(), rate, betas=s.betas)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> RAE:
        """A fresh learner with these networks and these settings."""
        encoder = networks.build_code_encoder(networks.latent_dim)
        return cls(encoder, networks.build_decoder(), networks.latent_dim, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, n = self.settings, x[0].numel()
        z = self.encoder(x)
        image = self.decoder.train()(z)
        error = (x - image).square().flatten(1).sum(1).mean()
        size = z.square().mean()
        penalty = self._penalty(z, image, generator)
        loss = error + 4 * n * (s.beta * size + s.strength * penalty)
        norm = self.update("autoencoder", loss)
        self.store.add(z)
        self._density = None
        self.iteration += 1
        return {
            "mse": error.detach() / n,
            "z_norm": size.detach(),
            "penalty": penalty.detach(),
            "autoencoder_gradient": norm,
        }

    def decode(self, z: Tensor) -> Tensor:
        """g(z), in evaluation mode: looking must not move the spectral norm's power iteration."""
        image: Tensor = self.decoder.eval()(z)
        return image

    def density(self) -> GaussianMixture:
        """The mixture fitted to the latest codes, kept until the next iteration changes them."""
        s = self.settings
        components = s.components if self.iteration >= s.first * s.horizon else 1
        if self._density is None or self._density[0] != components:
            self._density = components, GaussianMixture.fit(self.store.known, components)
        return self._density[1]

    def draws(self) -> Mapping[str, Draw]:
        """The mixture."""

        def mixture(n: int, _: int | None, generator: torch.Generator | None) -> Tensor:
            if len(self.store.known) < 2:
                like = self.store.points
                return like.new_empty(n, like.shape[1]).normal_(generator=generator)
            return self.density().sample(n, generator)

        return {"mixture": mixture}

    def inferences(self) -> Mapping[str, Infer]:
        """The code e(x)."""
        return {"encoder": lambda x, steps, noise, generator: self.encoder(x)}

    def _penalty(self, z: Tensor, image: Tensor, generator: torch.Generator | None) -> Tensor:
        """R(g)."""
        kind = self.settings.regularizer
        if kind == "l2":
            return squared_weights(self.decoder)
        if kind == "gradient":
            # E |J^T v|^2 = |J|^2 for v ~ N(0, I); half of J, since [0, 1] is half as wide.
            v = normal_like(image, generator, dim=0)
            (row,) = torch.autograd.grad(image, z, v / 2, create_graph=True)
            return row.square().sum(1).mean()
        return z.new_zeros(())


def _forget(learner: nn.Module, _: Any) -> None:
    """Other codes have come: a density fitted to the old ones no longer holds."""
    learner._density = None  # type: ignore[assignment]
