"""Algorithm 1: learn a decoder, an energy prior and an amortized sampler together.

Yu, Zhu, Xie, Ma, Gao, Zhu and Wu, "Learning Energy-Based Prior Model with Diffusion-Amortized
MCMC", NeurIPS 2023. Line by line in `DAMC.step`.
"""

from __future__ import annotations

__all__ = ["DAMC", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from damc.amortize import EMA, Amortizer
from damc.errors import BadInput
from damc.latent import LatentModel
from damc.learn.amortized import AmortizedLearner
from damc.learn.chains import ChainSettings
from damc.learn.learner import Metrics
from damc.learn.prior import PriorSettings
from damc.learn.starts import AmortizedStarts, Starts

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings(ChainSettings, PriorSettings):
    """Every choice of Algorithm 1, the paper's code as defaults unless the comment says otherwise.

    Those of the chains, the decoder and the energy are inherited, since the whole MCMC family
    shares them. docs/conventions.md says where the paper and its code differ.
    """

    prior_starts: str = "conditional"  # at q(z | x); "unconditional": at q(z)
    noise_negatives: bool = True  # and as many prior chains from N(0, I)
    updates: int = 6  # M gradient steps of the amortizer
    encoder_updates: int | None = None  # the last of them that train its encoder too; None: all
    p_uncond: float = 0.2
    unconditional: str = "share"  # "both": losses with and without x on the whole batch, summed
    ema_rate: float = 0.005
    ema_every: int = 10
    start_solver: str = "ancestral"  # how the chains' starts are drawn from the amortizer
    start_steps: int = 100
    amortizer_rate: float = 2e-4
    amortizer_weight_decay: float = 1e-4
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoder_updates is not None and self.encoder_updates < 1:
            raise BadInput(f"encoder_updates must be at least 1, got {self.encoder_updates}")
        if self.unconditional not in ("share", "both"):
            raise BadInput(f"unconditional must be 'share' or 'both', got {self.unconditional!r}")
        if self.prior_starts not in ("conditional", "unconditional"):
            raise BadInput(
                f"prior_starts must be 'conditional' or 'unconditional', got {self.prior_starts!r}"
            )


class DAMC(AmortizedLearner):
    """Diffusion-amortized MCMC learning of a latent energy-based model.

    Posterior and prior chains start at the amortizer's slow copy, decoder and energy learn from
    where they end as in every `ChainLearner`, and the amortizer learns the posterior's ends.

    Args:
        model: decoder, energy prior and sigma.
        amortizer: q(z | x) and q(z); its encoder embeds images.
        settings: the choices of Algorithm 1.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "damc"
    about: ClassVar[str] = "energy prior and amortized sampler, learned together (Algorithm 1)"
    settings_type: ClassVar[Any] = Settings

    def __init__(
        self,
        model: LatentModel,
        amortizer: Amortizer,
        settings: Settings | None = None,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(model, amortizer, settings, networks)
        s = self.settings
        self.ema = EMA(amortizer, s.ema_rate)
        self.target: Amortizer = self.ema.module
        draws = (self.target, s.start_solver, s.start_steps)
        self.posterior_starts: Starts = AmortizedStarts(*draws)
        self.unconditional_starts: Starts = AmortizedStarts(*draws, conditional=False)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s = self.settings

        # Draw DAMC samples from the EMA copy; they start the posterior and the prior chains.
        z0 = self.posterior_starts.draw(x, index, generator)
        starts = z0
        if s.prior_starts == "unconditional":
            starts = self.unconditional_starts.draw(x, index, generator)
        if s.noise_negatives:
            starts = torch.cat([starts, self.prior_starts.draw(x, index, generator)])

        # Prior and posterior Langevin updates.
        z_neg = self.prior_chain(starts, generator)
        z_pos, chain = self.posterior_chain(x, z0, generator)

        # Update theta: the decoder by reconstruction, the energy by its difference.
        metrics = {"displacement": chain.displacement, **self.update_theta(x, z_pos, z_neg)}

        # Update phi: M steps towards where the posterior chains ended.
        metrics |= self.update_phi(x, z_pos, s.updates, generator)

        self.iteration += 1
        if self.iteration % s.ema_every == 0:
            self.ema.update()
        return metrics
