"""Ways of drawing latent points, and of inferring those of images: what learners declare.

A learner's `draws` and `inferences` are mappings from a name to one of these callables.
"""

from __future__ import annotations

__all__ = [
    "Draw",
    "Infer",
    "PriorMoves",
    "amortizer_draw",
    "amortizer_inference",
    "first_guess",
    "noise_draw",
    "noise_inference",
    "prior_draws",
]

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.kernels.langevin import Langevin
from damc.latent import LatentModel
from damc.learn.starts import standard_normal
from damc.randomness import normal

Draw = Callable[[int, int | None, torch.Generator | None], Tensor]
"""(n, MCMC steps or None, generator) to latent points, ``(n, d)``."""

Infer = Callable[[Tensor, int | None, bool, torch.Generator | None], Tensor]
"""(images, MCMC steps or None, whether they are noisy, generator) to latent points, ``(B, d)``."""


class PriorMoves(Protocol):
    """Settings of the Langevin moves that draw from an energy prior."""

    @property
    def prior_step_size(self) -> float: ...
    @property
    def prior_sample_step_size(self) -> float | None: ...
    @property
    def prior_sample_steps(self) -> int: ...


def noise_draw(decoder: nn.Module, latent_dim: int) -> Draw:
    """z ~ N(0, I), where the decoder's weights are."""

    def gaussian(n: int, _: int | None, generator: torch.Generator | None) -> Tensor:
        like = next(decoder.parameters())
        return normal(n, latent_dim, generator=generator, dtype=like.dtype, device=like.device)

    return gaussian


def prior_draws(model: LatentModel, settings: PriorMoves | None = None) -> dict[str, Draw]:
    """N(0, I); before it, if the prior has an energy, Langevin moves on it from N(0, I).

    Args:
        model: the model.
        settings: of the Langevin moves; needed only if there is an energy.
    """

    gaussian = noise_draw(model.decoder, model.latent_dim)
    if model.prior.energy is None or settings is None:
        return {"gaussian": gaussian}
    kernel = Langevin(
        settings.prior_sample_step_size or settings.prior_step_size, settings.prior_sample_steps
    )

    def energy(n: int, steps: int | None, generator: torch.Generator | None) -> Tensor:
        z = gaussian(n, None, generator)
        return kernel.run(z, model.prior, generator, steps=steps)[0].z

    return {"energy": energy, "gaussian": gaussian}


def amortizer_draw(q: Amortizer) -> Draw:
    """z ~ q(z)."""
    return lambda n, _, generator: q.sample(n, generator=generator)


def noise_inference(model: LatentModel, step_size: float, steps: int) -> Infer:
    """Langevin moves on p(z | x) from N(0, I): without noise, to a mode of the posterior."""

    def infer(
        x: Tensor, moves: int | None, noise: bool, generator: torch.Generator | None
    ) -> Tensor:
        z = standard_normal(x, model.latent_dim, generator)
        return _refine(model, x, z, step_size, steps if moves is None else moves, noise, generator)

    return infer


def amortizer_inference(model: LatentModel, q: Amortizer, step_size: float, steps: int) -> Infer:
    """z ~ q(z | x), then Langevin moves on p(z | x)."""

    def infer(
        x: Tensor, moves: int | None, noise: bool, generator: torch.Generator | None
    ) -> Tensor:
        z = q.sample(x=x, generator=generator)
        return _refine(model, x, z, step_size, steps if moves is None else moves, noise, generator)

    return infer


def first_guess(
    model: LatentModel,
    q: Amortizer,
    x: Tensor,
    step_size: float,
    generator: torch.Generator | None,
) -> Tensor:
    """z ~ q(z | x) by few steps and one posterior move: a detector infers thousands of images."""
    z = q.sample(x=x, solver="multistep", steps=10, generator=generator)
    return _refine(model, x, z, step_size, 1, False, generator)


def _refine(
    model: LatentModel,
    x: Tensor,
    z: Tensor,
    step_size: float,
    steps: int,
    noise: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Where Langevin moves on p(z | x) lead from z ``(B, d)``; without noise, uphill."""
    kernel = Langevin(step_size, noise=noise)
    return kernel.run(z, model.posterior(x), generator, steps=steps)[0].z
