"""What every learner of the MCMC family does: run chains, then learn from where they end.

The members differ in where chains start (`damc.learn.starts`), whether the prior has an energy,
and what else is learned; see `abp`, `sri`, `lebm`, `nalr`, and Algorithm 1 itself in `damc`.
"""

from __future__ import annotations

__all__ = ["ChainLearner", "ChainSettings"]

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from damc.errors import BadInput
from damc.kernels.base import Info, Kernel
from damc.kernels.langevin import Langevin
from damc.kernels.underdamped import Underdamped
from damc.latent import LatentModel
from damc.learn.latent import PosteriorMoves
from damc.learn.learner import Metrics
from damc.learn.prior import ModelSettings, PriorLearner
from damc.learn.starts import NoiseStarts, Starts, standard_normal

if TYPE_CHECKING:
    from damc.nets.networks import Networks

Self = TypeVar("Self", bound="ChainLearner")

KERNELS: dict[str, Callable[[float, int], Kernel]] = {
    "langevin": Langevin,
    # Chains that start far up a slope overshoot with less friction than this.
    "underdamped": partial(Underdamped, friction=10.0),
}
"""How posterior chains may move, by name: from a step size and a number of moves."""


@dataclass(frozen=True)
class ChainSettings(ModelSettings):
    """The posterior chains that a decoder is learned from."""

    posterior_steps: int = 30  # T of the posterior chain
    posterior_step_size: float = 0.1
    posterior_kernel: str = "langevin"  # "underdamped": with momentum, for fewer moves
    decoder_updates: int = 1  # gradient steps of the decoder on the same posterior samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.posterior_kernel not in KERNELS:
            names = " or ".join(map(repr, KERNELS))
            raise BadInput(f"posterior_kernel must be {names}, got {self.posterior_kernel!r}")


class ChainLearner(PosteriorMoves, PriorLearner):
    """Maximum likelihood by Langevin chains, equation 2 of the paper:

        decoder:  down the gradient of  E_p(z|x) |x - g(z)|^2,
        energy:   down the gradient of  E_p(z|x) E(z) - E_p(z) E(z),

    with both expectations taken over chains of a few moves. One `step` is one iteration of this;
    a subclass chooses the starts, or writes a `step` of its own from the parts below.

    Args:
        model: decoder, prior and sigma.
        settings: of the learner's `settings_type`.
        networks: the description from which the networks were built, kept in `config`.

    Attributes:
        with_energy: whether `build` gives the prior an energy.
        posterior_starts: where posterior chains start; the index of a chain is its image's place
            in the data set. Noise, if the subclass says nothing.
    """

    with_energy: ClassVar[bool] = True

    def __init__(
        self, model: LatentModel, settings: Any = None, networks: Networks | None = None
    ) -> None:
        super().__init__(model, settings, networks)
        s = self.settings
        self.posterior_starts: Starts = NoiseStarts(model.latent_dim)
        kernel = KERNELS[s.posterior_kernel]
        self.posterior_kernel = kernel(s.posterior_step_size, s.posterior_steps)
        self.learn("decoder", model.decoder, s.decoder_rate)

    @classmethod
    def build(cls: type[Self], networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma, energy=cls.with_energy)
        return cls(model, settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        z_pos, chain = self.positives(x, index, generator)
        z_neg = self.negatives(x, generator)
        metrics = {"displacement": chain.displacement, **self.update_theta(x, z_pos, z_neg)}
        self.iteration += 1
        return metrics

    def positives(
        self, x: Tensor, index: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Info]:
        """One sample of p(z | x) for every image, ``(B, d)``, and how the chains went."""
        z0 = self.posterior_starts.draw(x, index, generator)
        z, info = self.posterior_chain(x, z0, generator)
        self.posterior_starts.keep(index, z)
        return z, info

    def posterior_chain(
        self, x: Tensor, z: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Info]:
        """Where chains on p(z | x) end, ``(B, d)``, that start at z, and how they went."""
        state, info = self.posterior_kernel.run(z, self.model.posterior(x), generator)
        return state.z, info

    def codes(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Samples of p(z | x), ``(B, d)``, by the learner's own chains: for a second stage."""
        return self.positives(x, index, generator)[0]

    def update_theta(self, x: Tensor, z_pos: Tensor, z_neg: Tensor | None) -> Metrics:
        """Steps of the decoder, by reconstruction, and one of the energy, by its difference.

        Args:
            x: images, ``(B, C, H, W)``.
            z_pos: ends of their posterior chains, ``(B, d)``.
            z_neg: ends of prior chains, ``(N, d)``; unused without an energy.
        """
        errors = []
        for _ in range(self.settings.decoder_updates):
            error = self.model.squared_error(x, z_pos).mean()
            norm = self.update("decoder", error)
            errors.append(error.detach())
        metrics = {
            "mse": errors[0] / x[0].numel(),
            "z_norm": z_pos.square().mean(),
            "decoder_gradient": norm,
        }
        return metrics | self.update_energy(z_pos, z_neg)

    def infer(
        self,
        x: Tensor,
        *,
        steps: int | None = None,
        noise: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of images, ``(B, d)``: posterior moves from N(0, I).

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            steps: the settings' `inference_steps` by default.
            noise: False refines to the posterior's nearest mode (as the authors' evaluation
                does), True samples.
            generator: source of all randomness.
        """
        z = standard_normal(x, self.model.latent_dim, generator)
        moves = self.settings.inference_steps if steps is None else steps
        return self.refine(x, z, moves, noise, generator)

    def starts(self) -> dict[str, Starts]:
        """Every kind of starts by name."""
        return {"posterior": self.posterior_starts, **super().starts()}
