"""Alternating back-propagation: a decoder learned from posterior chains that go on for ever.

Han, Lu, Zhu and Wu, "Alternating Back-Propagation for Generator Network", AAAI 2017.
"""

from __future__ import annotations

__all__ = ["ABP", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from damc.latent import LatentModel
from damc.learn.chains import ChainLearner, ChainSettings
from damc.learn.starts import PersistentStarts

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class Settings(ChainSettings):
    """Choices of ABP; the defaults are those of the DAMC authors' comparison."""

    sigma: float = 1.0
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class ABP(ChainLearner):
    """A decoder under N(0, I), by

        down the gradient of  E |x - g(z)|^2,    z ~ p(z | x) by Langevin.

    The chain of each training image goes on where it ended at the image's last visit (see
    `PersistentStarts` for what is kept), so that a few moves at each visit add up to a long chain.
    With starts at noise this is `SRI`, and in the first epoch it is in any case. Images that were
    not trained on have no chain: `infer` starts at noise.
    """

    name: ClassVar[str] = "abp"
    about: ClassVar[str] = "Gaussian prior; one posterior chain for each image, kept over epochs"
    settings_type: ClassVar[Any] = Settings
    with_energy: ClassVar[bool] = False

    def __init__(
        self, model: LatentModel, settings: Any = None, networks: Networks | None = None
    ) -> None:
        super().__init__(model, settings, networks)
        self.posterior_starts = PersistentStarts(model.latent_dim)
