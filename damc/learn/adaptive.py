"""Adaptive contrastive estimation: an energy prior as a product of density ratios, in stages.

Xiao and Han, "Adaptive Multi-stage Density Ratio Estimation for Learning Latent Space Energy-based
Model", NeurIPS 2022. No public code is known. Our reading of it, where it leaves a choice:

- The stages share the horizon equally. During stage k the prior, that of posterior chains too, is
  the product of the ratios 1 ... k-1, which no longer change; ratio k joins it when k ends.
- Prior samples of stage k are short Langevin chains on that product from N(0, I). In the first
  stage the product is empty and N(0, I) itself is drawn, without a chain.
- Posterior chains start at N(0, I) in every iteration, and the decoder learns from their ends
  throughout, so that later ratios also make up for what moved since the earlier ones.
- After the horizon every ratio is in the prior, and only the decoder goes on learning.
"""

from __future__ import annotations

__all__ = ["AdaptiveCE", "Ratios", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from damc.errors import BadInput
from damc.fast.gradients import Evaluation, Pull, pullback, rule
from damc.kernels.langevin import Langevin
from damc.latent import LatentModel
from damc.learn.chains import ChainLearner, ChainSettings
from damc.learn.learner import Metrics, Rate
from damc.learn.ncp import contrast
from damc.learn.stages import LaterRate
from damc.nets import mlp_energy

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings(ChainSettings):
    """Choices of adaptive contrastive estimation; chains and rates are those of Algorithm 1."""

    prior_steps: int = 60  # T of the prior chain
    prior_step_size: float = 0.4
    energy_rate: float = 1e-4  # of every ratio, within its stage
    prior_sample_steps: int = 100  # prior moves when images are drawn from the energy
    prior_sample_step_size: float | None = None  # of those; None: prior_step_size
    stages: int = 4  # ratios: four times the parameters of one energy, as the DAMC paper counts
    horizon: int = 200_000  # iterations of all stages together
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class Ratios(nn.Module):
    """E(z) = E_1(z) + ... + E_k(z) of the k stages that are finished; 0 while there is none.

    Each exp(-E_i) is an estimated ratio of densities, so exp(-E) is their product.

    Args:
        energies: one for each stage, modules from z ``(B, d)`` to ``(B,)``.
    """

    count: Tensor

    def __init__(self, *energies: nn.Module) -> None:
        super().__init__()
        self.energies = nn.ModuleList(energies)
        # In the state dict, so that loaded weights know their stage; and as a number, since
        # reading a tensor in every move of a chain would stall a GPU.
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.finished = 0
        self.register_load_state_dict_post_hook(_read_count)  # type: ignore[no-untyped-call]

    def finish(self, stages: int) -> None:
        """Lets the first so many ratios make up the energy."""
        if stages != self.finished:
            self.count.fill_(stages)
            self.finished = stages

    def forward(self, z: Tensor) -> Tensor:
        """Energies ``(B,)`` of latent points z ``(B, d)``."""
        total = z.new_zeros(len(z))
        for energy in self.energies[: self.finished]:
            total = total + energy(z)
        return total


@rule(Ratios)
def _written_out(ratios: Ratios) -> Evaluation:
    """The sum of the finished energies, and the sum of their gradients."""
    energies = [pullback(energy) for energy in ratios.energies[: ratios.finished]]

    def evaluate(z: Tensor) -> tuple[Tensor, Pull]:
        values, pulls = z.new_zeros(len(z)), []
        for energy in energies:
            value, pull = energy(z)
            values = values + value
            pulls.append(pull)

        def pull_all(grad: Tensor) -> Tensor:
            total = torch.zeros_like(z)
            for pull in pulls:
                total += pull(grad.clone())  # a pull may overwrite what it is given
            return total

        return values, pull_all

    return evaluate


class AdaptiveCE(ChainLearner):
    """A decoder from posterior chains, an energy prior from classifiers, one after the other.

    Stage k learns E_k by the logistic loss between posterior and prior samples,

        -E_p(z|x) log D_k(z) - E_p_k(z) log(1 - D_k(z)),    D_k = sigmoid(-E_k),

    whose optimum exp(-E_k) is the ratio of the aggregate posterior to the prior so far, p_k. Then
    p_k+1(z) = exp(-E_k(z)) p_k(z), from p_1 = N(0, I). The nearer two laws are, the better a
    classifier can tell their ratio, which is why several small steps beat one large one; with
    ``stages = 1`` this is a noise-contrastive prior, learned beside its decoder.

    Args:
        model: the decoder, sigma, and a prior whose energy is `Ratios`.
        settings: the choices.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "adaptive-ce"
    about: ClassVar[str] = "energy prior as a product of density ratios, learned in stages"
    settings_type: ClassVar[Any] = Settings

    def __init__(
        self,
        model: LatentModel,
        settings: Settings | None = None,
        networks: Networks | None = None,
    ) -> None:
        ratios = model.prior.energy
        if not isinstance(ratios, Ratios):
            raise BadInput(f"the prior's energy must be Ratios, got {type(ratios).__name__}")
        s = settings or Settings(sigma=model.sigma, stages=len(ratios.energies))
        if len(ratios.energies) != s.stages:
            raise BadInput(f"got {len(ratios.energies)} ratios for {s.stages} stages")
        super().__init__(model, s, networks)
        self.prior_kernel = Langevin(s.prior_step_size, s.prior_steps)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> AdaptiveCE:
        """A fresh learner with these networks and these settings."""
        ratios = Ratios(
            *(
                networks.build_energy() or mlp_energy(networks.latent_dim)
                for _ in range(settings.stages)
            )
        )
        decoder = networks.build_decoder()
        return cls(
            LatentModel(decoder, ratios, networks.latent_dim, settings.sigma), settings, networks
        )

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s = self.settings
        self.ratios.finish(min(s.stages, self.iteration * s.stages // s.horizon))
        metrics = super().step(x, index, generator)
        if self.iteration == s.horizon:
            self.ratios.finish(s.stages)
        return metrics

    @property
    def ratios(self) -> Ratios:
        """The prior's energy."""
        return self.model.prior.energy  # type: ignore[no-any-return]

    def prior_chain(self, z: Tensor, generator: torch.Generator | None) -> Tensor:
        """Samples of the prior so far, ``(B, d)``, from starts z ~ N(0, I)."""
        # Before the first ratio the starts are the prior; after the last, nobody needs samples.
        if self.ratios.finished in (0, self.settings.stages):
            return z
        return super().prior_chain(z, generator)

    def update_energy(self, z_pos: Tensor, z_neg: Tensor | None) -> Metrics:
        """One step of the ratio of this stage, between z_pos ``(B, d)`` and z_neg ``(B, d)``."""
        stage = self.ratios.finished
        if stage == self.settings.stages or z_neg is None:
            return {}
        energy = self.ratios.energies[stage]
        e_pos, e_neg = energy(torch.cat([z_pos, z_neg])).split([len(z_pos), len(z_neg)])
        loss = contrast(e_pos, e_neg)
        return {
            "contrast": loss.detach(),
            "energy_difference": (e_pos.mean() - e_neg.mean()).detach(),
            "energy_gradient": self.update(f"ratio{stage}", loss),
        }

    def learn(
        self,
        name: str,
        module: nn.Module,
        rate: float | Rate,
        kind: Any = torch.optim.Adam,
        **options: Any,
    ) -> None:
        """Owns an optimizer for the decoder, and one for each ratio instead of one for all."""
        if not isinstance(module, Ratios):
            super().learn(name, module, rate, kind, **options)
            return
        s = self.settings
        for k, energy in enumerate(module.energies):
            start = -(-k * s.horizon // s.stages)
            length = max(s.horizon // s.stages, 1)
            later = LaterRate(s.energy_rate, s.decay, length, start=start)
            super().learn(f"ratio{k}", energy, later, kind, **options)


def _read_count(ratios: nn.Module, _: Any) -> None:
    """Takes the number of finished stages from the weights that were loaded."""
    assert isinstance(ratios, Ratios)
    ratios.finished = int(ratios.count)
