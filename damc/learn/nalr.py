"""NALR-LEBM: long chains first, the amortizer afterwards. The paper's non-amortized ablation.

Yu et al., "Learning Energy-Based Prior Model with Diffusion-Amortized MCMC", NeurIPS 2023,
section 4.4.
"""

from __future__ import annotations

__all__ = ["NALR", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.latent import LatentModel
from damc.learn.amortized import AmortizedLearner
from damc.learn.chains import ChainSettings
from damc.learn.learner import Metrics, Rate
from damc.learn.prior import PriorSettings
from damc.learn.stages import LaterRate
from damc.learn.starts import PersistentStarts

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings(ChainSettings, PriorSettings):
    """Choices of NALR; the defaults are those of the DAMC authors' script.

    They train the model for 25,000 iterations, whatever comes after; here it is a share of the
    horizon.
    """

    first: float = 0.7  # share of the horizon in which the model is learned
    distillation_updates: int = 1  # gradient steps of the amortizer in an iteration after that
    p_uncond: float = 0.2
    unconditional: str = "share"  # "both": losses with and without x on the whole batch, summed
    amortizer_rate: float = 2e-4
    amortizer_weight_decay: float = 1e-2
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time
    horizon: int = 100_000  # iterations in all


class NALR(AmortizedLearner):
    """A latent energy-based model by persistent posterior chains, then its amortizer.

    First the decoder and the energy are learned as by LEBM, except that the posterior chain of
    each image goes on where it last ended (its prior chains start at noise). Then both are frozen,
    the posterior chains go on, and the amortizer alone learns their ends. Rates fall over the
    stage to which they belong.

    Until the second stage has begun the amortizer knows nothing: samples come from the energy, and
    inference starts at noise.
    """

    name: ClassVar[str] = "nalr"
    about: ClassVar[str] = "energy prior by persistent chains; the amortizer distilled afterwards"
    settings_type: ClassVar[Any] = Settings

    def __init__(
        self,
        model: LatentModel,
        amortizer: Amortizer,
        settings: Any = None,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(model, amortizer, settings, networks)
        s = self.settings
        self.posterior_starts = PersistentStarts(model.latent_dim)
        self.frozen_at = round(s.first * s.horizon)
        self.rates = {
            "decoder": Rate(s.decoder_rate, s.decay, max(1, self.frozen_at)),
            "energy": Rate(s.energy_rate, s.decay, max(1, self.frozen_at)),
            "amortizer": LaterRate(
                s.amortizer_rate, s.decay, s.horizon - self.frozen_at, start=self.frozen_at
            ),
        }

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        if self.iteration < self.frozen_at:
            return super().step(x, index, generator)
        z, chain = self.positives(x, index, generator)
        metrics = {"displacement": chain.displacement, "z_norm": z.square().mean()}
        metrics |= self.update_phi(x, z, self.settings.distillation_updates, generator)
        self.iteration += 1
        return metrics

    @property
    def sources(self) -> tuple[str, ...]:
        """The ways to draw from this model, the best first."""
        known = super().sources
        return known if self.iteration > self.frozen_at else known[1:]
