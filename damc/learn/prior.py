"""A decoder under a prior with an energy: how the energy is learned, and drawn from."""

from __future__ import annotations

__all__ = ["ModelSettings", "PriorLearner", "PriorSettings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from damc.kernels.langevin import Langevin
from damc.latent import LatentModel
from damc.learn.latent import LatentLearner
from damc.learn.learner import Metrics, Rate
from damc.learn.settings import adam, check_settings
from damc.learn.starts import NoiseStarts, Starts

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class ModelSettings:
    """The likelihood, and how its decoder is learned."""

    sigma: float = 0.1  # standard deviation of the likelihood
    decoder_rate: float = 2e-4
    beta1: float = 0.5
    decay: str = "step"
    horizon: int = 1  # of decay = "cosine"
    clip: float = 100.0

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class PriorSettings(ModelSettings):
    """An energy, and the prior chains that it is learned from."""

    prior_steps: int = 60  # T of the prior chain
    prior_step_size: float = 0.4  # the paper's text says 0.1
    energy_rate: float = 1e-4
    energy_penalty: float = 0.0  # weight of mean E^2 over both kinds of samples
    prior_sample_steps: int = 100  # prior moves when images are drawn from the energy
    prior_sample_step_size: float | None = None  # of those; None: prior_step_size


class PriorLearner(LatentLearner):
    """A decoder and, unless the prior is N(0, I), an energy learned by equation 2 of the paper:

        down the gradient of  E_p(z|x) E(z) - E_p(z) E(z),

    where the second expectation is over the ends of Langevin chains on the prior. Where posterior
    samples come from, and how the decoder is learned, is left to a subclass.

    Args:
        model: decoder, prior and sigma.
        settings: of the learner's `settings_type`; `PriorSettings` if the prior has an energy.
        networks: the description from which the networks were built, kept in `config`.

    Attributes:
        prior_starts: where prior chains start. They belong to no image: the index of a chain is
            its place in the batch. Noise, if the subclass says nothing.
    """

    def __init__(
        self, model: LatentModel, settings: Any = None, networks: Networks | None = None
    ) -> None:
        s = settings or self.settings_type(sigma=model.sigma)
        super().__init__(s, networks)
        self.model = model  # type: ignore[misc]
        self.clip = s.clip
        self.prior_starts: Starts = NoiseStarts(model.latent_dim)
        if isinstance(s, PriorSettings):
            self.prior_kernel = Langevin(s.prior_step_size, s.prior_steps)
        if model.prior.energy is not None:
            self.learn("energy", model.prior.energy, s.energy_rate)

    def negatives(self, x: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """One sample of the prior for every image, ``(B, d)``; None if it has no energy."""
        if self.model.prior.energy is None:
            return None
        place = torch.arange(len(x))
        z = self.prior_chain(self.prior_starts.draw(x, place, generator), generator)
        self.prior_starts.keep(place, z)
        return z

    def prior_chain(self, z: Tensor, generator: torch.Generator | None) -> Tensor:
        """Where chains on the prior end, ``(B, d)``, that start at z ``(B, d)``."""
        return self.prior_kernel.run(z, self.model.prior, generator)[0].z

    def update_energy(self, z_pos: Tensor, z_neg: Tensor | None) -> Metrics:
        """One step of the energy: down at z_pos ``(B, d)``, up at z_neg ``(N, d)``."""
        energy = self.model.prior.energy
        if energy is None:
            return {}
        e_pos, e_neg = energy(z_pos), energy(z_neg)
        difference = e_pos.mean() - e_neg.mean()
        penalty = e_pos.square().mean() + e_neg.square().mean()
        loss = difference + self.settings.energy_penalty * penalty
        return {
            "energy_positive": e_pos.detach().mean(),
            "energy_difference": difference.detach(),
            "energy_gradient": self.update("energy", loss),
        }

    @property
    def sources(self) -> tuple[str, ...]:
        """The ways to draw from this model, the best first."""
        return ("gaussian",) if self.model.prior.energy is None else ("energy", "gaussian")

    def draw_prior(
        self, n: int, source: str, steps: int | None, generator: torch.Generator | None
    ) -> Tensor:
        z = self.sample_latent(n, "gaussian", generator=generator)
        s = self.settings
        kernel = Langevin(s.prior_sample_step_size or s.prior_step_size)
        moves = s.prior_sample_steps if steps is None else steps
        return kernel.run(z, self.model.prior, generator, steps=moves)[0].z

    def learn(
        self,
        name: str,
        module: nn.Module,
        rate: float | Rate,
        kind: Any = torch.optim.Adam,
        **options: Any,
    ) -> None:
        """Owns an optimizer of all the weights of a module; a plain rate falls as settings say."""
        s = self.settings
        schedule = rate if isinstance(rate, Rate) else Rate(rate, s.decay, s.horizon)
        optimizer = kind(list(module.parameters()), lr=schedule.rate, **adam(s), **options)
        self.own(name, optimizer, schedule)

    def resume_state(self) -> dict[str, Any]:
        """What the next iteration depends on besides the weights, persistent chains included."""
        chains = {name: starts.resume_state() for name, starts in self.starts().items()}
        kept = {name: state for name, state in chains.items() if state}
        return super().resume_state() | ({"chains": kept} if kept else {})

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Takes back what `resume_state` gave."""
        super().load_resume_state(state)
        for name, kept in state.get("chains", {}).items():
            self.starts()[name].load_resume_state(kept)

    def starts(self) -> dict[str, Starts]:
        """Every kind of starts by name."""
        return {"prior": self.prior_starts}
