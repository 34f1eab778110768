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
    "energy_draw",
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
from damc.amortize.center import Center
from damc.kernels.ascent import Ascent
from damc.kernels.base import Kernel
from damc.kernels.langevin import Langevin
from damc.latent import EnergyPrior, LatentModel
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


def noise_draw(net: nn.Module, latent_dim: int) -> Draw:
    """z ~ N(0, I), of the type and on the device of a network's weights."""

    def gaussian(n: int, _: int | None, generator: torch.Generator | None) -> Tensor:
        like = next(net.parameters())
        return normal(n, latent_dim, generator=generator, dtype=like.dtype, device=like.device)

    return gaussian


def energy_draw(prior: EnergyPrior, kernel: Kernel, gaussian: Draw) -> Draw:
    """Moves on the prior's energy from points that `gaussian` draws."""

    def energy(n: int, steps: int | None, generator: torch.Generator | None) -> Tensor:
        return kernel.run(gaussian(n, None, generator), prior, generator, steps=steps)[0].z

    return energy


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
    return {"energy": energy_draw(model.prior, kernel, gaussian), "gaussian": gaussian}


def amortizer_draw(q: Amortizer) -> Draw:
    """z ~ q(z)."""
    return lambda n, _, generator: q.sample(n, generator=generator)


def noise_inference(
    model: LatentModel, step_size: float, steps: int, center: Center | None = None
) -> Infer:
    """Langevin moves on p(z | x) from N(0, I): without noise, to a mode of the posterior.

    With a center, in its coordinates: a step size that was meant for those diverges in others.
    """
    d = model.latent_dim
    return _refined(model, lambda x, g: standard_normal(x, d, g), step_size, steps, center)


def amortizer_inference(model: LatentModel, q: Amortizer, step_size: float, steps: int) -> Infer:
    """z ~ q(z | x), then Langevin moves on p(z | x), in the coordinates of its center if any."""
    return _refined(model, lambda x, g: q.sample(x=x, generator=g), step_size, steps, q.center)


def first_guess(
    model: LatentModel,
    q: Amortizer,
    x: Tensor,
    step_size: float,
    generator: torch.Generator | None,
) -> Tensor:
    """z ~ q(z | x) by few steps and one posterior move: a detector infers thousands of images."""
    z = q.sample(x=x, generator=generator, solver="multistep", steps=10)
    kernel = Langevin(step_size, noise=False, scale=_scale(q.center))
    return kernel.run(z, model.posterior(x), generator, steps=1)[0].z


def _refined(
    model: LatentModel,
    start: Callable[[Tensor, torch.Generator | None], Tensor],
    step_size: float,
    steps: int,
    center: Center | None = None,
) -> Infer:
    """Langevin moves on p(z | x) from ``start(x, generator)``; without noise, uphill alone."""

    def infer(
        x: Tensor, moves: int | None, noise: bool, generator: torch.Generator | None
    ) -> Tensor:
        kernel = (Langevin if noise else Ascent)(step_size, scale=_scale(center))
        moves = steps if moves is None else moves
        z = start(x, generator)
        return kernel.run(z, model.posterior(x), generator, steps=moves)[0].z

    return infer


def _scale(center: Center | None) -> Tensor | None:
    """The preconditioner of moves in the coordinates of a center."""
    return None if center is None else center.factor
