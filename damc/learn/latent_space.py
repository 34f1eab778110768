"""A diffusion amortizer in the latent space of another model, pre-trained and left as it is.

The appendix of Yu et al. 2023 ("Learning Energy-Based Prior Model with Diffusion-Amortized MCMC")
compares Algorithm 1 with diffusion models learned in the latent spaces of a VAE (Kingma and
Welling 2014) and of alternating back-propagation (ABP, Han et al. 2017).
"""

from __future__ import annotations

__all__ = ["ABPDiffusion", "LatentDiffusion", "Settings", "VAEDiffusion"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.learn.abp import ABP
from damc.learn.latent import PosteriorMoves
from damc.learn.learner import Learner, Metrics
from damc.learn.settings import adam, check_settings, shared_settings
from damc.learn.stages import SecondStage
from damc.learn.vae import VAE

if TYPE_CHECKING:
    from damc.nets.networks import Networks

Self = TypeVar("Self", bound="LatentDiffusion")


@dataclass(frozen=True)
class Settings:
    """Choices of a diffusion amortizer in a latent space; those of Algorithm 1 as defaults."""

    sigma: float = 0.1
    first: float = 0.7  # share of the horizon that trains the base
    posterior_steps: int = 30  # of ABP's chains
    posterior_step_size: float = 0.1
    updates: int = 6  # M gradient steps of the amortizer
    p_uncond: float = 0.2
    decoder_rate: float = 2e-4  # of the base
    amortizer_rate: float = 2e-4
    amortizer_weight_decay: float = 1e-4
    beta1: float = 0.5
    decay: str = "step"
    horizon: int = 200_000  # iterations of both stages together
    clip: float = 100.0
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time

    def __post_init__(self) -> None:
        check_settings(self)


class LatentDiffusion(PosteriorMoves, SecondStage):
    """Pre-trains `base_type`, then distills its posterior samples into an amortizer.

    The second stage minimizes the denoising loss (`Amortizer.loss`, equation 7) of q(z | x) and
    q(z) on draws z of the base's posterior of x. Unlike in Algorithm 1, what is learned about q
    never comes back to the decoder, nor to where the draws start. Samples are g(z) with z ~ q(z);
    inference is q(z | x) and `test_steps` moves on the base's posterior. Until the second stage
    has begun, both are the base's own.

    Args:
        base: the learner to pre-train, with its decoder in `model`.
        amortizer: q(z | x) and q(z); its encoder embeds images.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    settings_type: ClassVar[Any] = Settings
    second_sources: ClassVar[tuple[str, ...]] = ("amortizer",)
    base_type: ClassVar[type[Learner]]

    def __init__(
        self,
        base: Learner,
        amortizer: Amortizer,
        settings: Settings,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(base, settings, networks)
        s = settings
        self.amortizer = amortizer
        optimizer = torch.optim.AdamW(
            list(amortizer.parameters()),
            lr=s.amortizer_rate,
            weight_decay=s.amortizer_weight_decay,
            **adam(s),
        )
        self.own("amortizer", optimizer, self.second_rate(s.amortizer_rate))

    @classmethod
    def build(cls: type[Self], networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        horizon = max(cls.begins_at(settings), 1)
        first = shared_settings(settings, cls.base_type.settings_type, horizon=horizon)
        base = cls.base_type.build(networks, first)
        return cls(base, networks.build_amortizer(), settings, networks)

    def learn(
        self, z: Tensor, x: Tensor, index: Tensor, generator: torch.Generator | None
    ) -> Metrics:
        s = self.settings
        for _ in range(s.updates):
            loss = self.amortizer.loss(z, x, p_uncond=s.p_uncond, generator=generator)
            norm = self.update("amortizer", loss)
        return {
            "amortizer_loss": loss.detach(),
            "amortizer_gradient": norm,
            "z_norm": z.square().mean(),
        }

    def draw_prior(
        self, n: int, source: str, steps: int | None, generator: torch.Generator | None
    ) -> Tensor:
        """z ~ q(z), ``(n, d)``."""
        return self.amortizer.sample(n, generator=generator)

    def infer(
        self,
        x: Tensor,
        *,
        steps: int | None = None,
        noise: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of images, ``(B, d)``: q(z | x), then `steps` posterior moves.

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            steps: the settings' `test_steps` by default.
            noise: False refines to the posterior's nearest mode, True samples.
            generator: source of all randomness.
        """
        if not self.ready:
            return super().infer(x, generator=generator)
        z = self.amortizer.sample(x=x, generator=generator)
        moves = self.settings.test_steps if steps is None else steps
        return self.refine(x, z, moves, noise, generator)


class VAEDiffusion(LatentDiffusion):
    """In the latent space of a VAE: z ~ N(m(x), diag v(x)), drawn anew for each batch."""

    name: ClassVar[str] = "damc-vae"
    about: ClassVar[str] = "diffusion amortizer in the latent space of a pre-trained VAE"
    base_type: ClassVar[type[Learner]] = VAE


class ABPDiffusion(LatentDiffusion):
    """In the latent space of ABP: z from the images' chains, which go on under a fixed decoder."""

    name: ClassVar[str] = "damc-abp"
    about: ClassVar[str] = "diffusion amortizer in the latent space of a pre-trained ABP"
    base_type: ClassVar[type[Learner]] = ABP
