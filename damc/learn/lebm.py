"""Latent energy-based models learned by short-run chains, and by persistent prior chains.

Pang, Han, Nijkamp, Zhu and Wu, "Learning Latent Space Energy-Based Prior Model", NeurIPS 2020.
Tieleman, "Training Restricted Boltzmann Machines using Approximations to the Likelihood
Gradient", ICML 2008, for chains that go on from one iteration to the next.
"""

from __future__ import annotations

__all__ = ["LEBM", "PersistentLEBM", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from damc.latent import LatentModel
from damc.learn.chains import ChainLearner, ChainSettings
from damc.learn.prior import PriorSettings
from damc.learn.starts import PersistentStarts

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings(ChainSettings, PriorSettings):
    """Choices of LEBM; the defaults are its authors' on SVHN, with a clip that they do without."""

    sigma: float = 0.3
    posterior_steps: int = 20
    decoder_rate: float = 1e-4
    energy_rate: float = 2e-5
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class LEBM(ChainLearner):
    """Short-run LEBM (SR-LEBM): posterior and prior chains start at N(0, I) in every iteration.

        decoder:  down the gradient of  E |x - g(z)|^2,          z ~ p(z | x) by a short chain,
        energy:   down the gradient of  E E(z) - E E(z'),        z' ~ p(z) by a short chain.

    Without an energy this is SRI; with starts at an amortizer it is DAMC.
    """

    name: ClassVar[str] = "lebm"
    about: ClassVar[str] = "energy prior; short posterior and prior chains from noise (SR-LEBM)"
    settings_type: ClassVar[Any] = Settings


class PersistentLEBM(LEBM):
    """LEBM whose prior chains go on where they ended in the iteration before.

    There are as many as images in a batch. Their law follows the energy as it changes slowly,
    so that the energy meets samples of far longer chains for the price of short ones.
    """

    name: ClassVar[str] = "lebm-persistent"
    about: ClassVar[str] = "LEBM whose prior chains go on from one iteration to the next"

    def __init__(
        self, model: LatentModel, settings: Any = None, networks: Networks | None = None
    ) -> None:
        super().__init__(model, settings, networks)
        self.prior_starts = PersistentStarts(model.latent_dim)
