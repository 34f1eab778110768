"""The parts that ways of learning are composed of: chains, and one update of each network.

    Chain          starts, a kernel and a target: samples of p(z | x) or p(z)
    decoder_step   down the gradient of  E_p(z|x) |x - g(z)|^2
    energy_step    down the gradient of  E_p(z|x) E(z) - E_p(z) E(z)
    sampler_step   down the denoising loss of q(z | x), q(z) at samples of p(z | x)
    prior_sampler_step   the same of a q(z) of its own, at stored samples

The first two updates are equation 2 of the paper, the last is its equation 7.
"""

from __future__ import annotations

__all__ = [
    "Chain",
    "Metrics",
    "Update",
    "decoder_step",
    "energy_step",
    "prior_sampler_step",
    "sampler_step",
    "squared_weights",
]

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer, amortizer_step
from damc.density import Target
from damc.kernels.base import Info, Kernel
from damc.latent import LatentModel, energies
from damc.learn.prior import RefinedMixture
from damc.learn.starts import Starts, Store
from damc.randomness import whole_batch

Metrics = dict[str, Tensor]
"""Scalars that say how an iteration went."""

Update = Callable[[str, Tensor], Tensor]
"""An optimizer's name and a loss to the norm of the gradient: `Learner.update`."""


class Chain:
    """Markov chains on one kind of target.

    Args:
        starts: where the chains of a batch start.
        kernel: how they move, and how often.
        target: the density for a batch x, as ``target(x)``; ``LatentModel.posterior`` is one.
    """

    def __init__(self, starts: Starts, kernel: Kernel, target: Callable[[Any], Target]) -> None:
        self.starts, self.kernel, self.target = starts, kernel, target

    def run(
        self, x: Any, index: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Info]:
        """One sample for every row of x, ``(B, d)``, and how the chains went.

        Args:
            x: the batch, ``(B, ...)``.
            index: which chains these are, ``(B,)``: images' places in the data set, or places in
                the batch for chains that belong to no image.
            generator: source of all randomness.
        """
        z, info = self.move(x, self.starts.draw(x, index, generator), generator)
        self.starts.keep(index, z)
        return z, info

    def move(
        self, x: Any, z: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Info]:
        """Where chains that start at z ``(N, d)`` end, ``(N, d)``, and how they went."""
        state, info = self.kernel.run(z, self.target(x), generator)
        return state.z, info


def decoder_step(
    model: LatentModel,
    x: Tensor,
    z: Tensor,
    update: Update,
    *,
    updates: int = 1,
    penalty: float = 0.0,
) -> Metrics:
    """`updates` steps of the decoder towards images x ``(B, ...)`` at points z ``(B, d)``.

    Args:
        model: the decoder.
        x: the images.
        z: the points.
        update: `Learner.update`.
        updates: how many steps.
        penalty: weight of the `squared_weights` of dense layers beside an image's squared error.
    """
    errors = []
    for _ in range(updates):
        error = model.squared_error(x, z).mean()
        loss = error
        if penalty:
            loss = loss + penalty * squared_weights(model.decoder, dense=True)
        norm = update("decoder", loss)
        errors.append(error.detach())
    return {
        "mse": errors[0] / x[0].numel(),  # of the samples, before any update
        "z_norm": z.square().mean(),
        "decoder_gradient": norm,
    }


def squared_weights(network: nn.Module, *, dense: bool = False) -> Tensor:
    """The sum of squares of a network's weights, not of its offsets, ``()``.

    Args:
        network: a decoder, for example.
        dense: of its fully connected layers alone, if it has any: in a decoder these say where in
            latent space an image lies, and the convolutions after them draw it.
    """
    layers = [m.weight for m in network.modules() if dense and isinstance(m, nn.Linear)]
    weights = layers or [p for p in network.parameters() if p.ndim > 1]
    return torch.stack([w.square().sum() for w in weights]).sum()


def energy_step(
    energy: nn.Module | None, z_pos: Tensor, z_neg: Tensor, update: Update, *, penalty: float = 0.0
) -> Metrics:
    """One step of the energy: down at z_pos ``(B, d)``, up at z_neg ``(N, d)``.

    Args:
        energy: E, ``(B, d)`` to ``(B,)`` or ``(B, 1)``.
        z_pos: samples of the posterior.
        z_neg: samples of the prior.
        update: `Learner.update`.
        penalty: weight of mean E^2 over both kinds of samples.
    """
    assert energy is not None
    e_pos, e_neg = (energies(energy, energy(z), z) for z in (z_pos, z_neg))
    difference = e_pos.mean() - e_neg.mean()
    loss = difference + penalty * (e_pos.square().mean() + e_neg.square().mean())
    return {
        "energy_positive": e_pos.detach().mean(),
        "energy_difference": difference.detach(),
        "energy_gradient": update("energy", loss),
    }


def sampler_step(
    q: Amortizer,
    x: Any,
    z: Tensor,
    generator: torch.Generator | None,
    *,
    update: Update,
    **choices: Any,
) -> Metrics:
    """M steps of the amortizer towards samples z ``(B, d)`` of p(z | x): `amortizer_step`."""
    step = partial(update, "amortizer")
    loss, norm = amortizer_step(q, z, x, step=step, generator=generator, **choices)
    return {"amortizer_loss": loss, "amortizer_gradient": norm}


def prior_sampler_step(
    q: RefinedMixture,
    store: Store,
    generator: torch.Generator | None,
    *,
    update: Update,
    updates: int,
    batch: int,
) -> Metrics:
    """`updates` steps of a q(z) of its own towards stored samples, which need no decoder."""
    generator = whole_batch(generator)  # of several processes each takes the same steps
    for _ in range(updates):
        loss = q.loss(store.draw(batch, generator), generator)
        update("prior_sampler", loss)
    return {"prior_sampler_loss": loss.detach()}
