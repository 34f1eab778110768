"""Alternating back-propagation: a decoder learned from persistent posterior chains.

Han, Lu, Zhu and Wu, "Alternating Back-Propagation for Generator Network", AAAI 2017.
"""

from __future__ import annotations

__all__ = ["ABP", "ABPSettings"]

from dataclasses import dataclass
from typing import Any, ClassVar

from damc.learn.settings import ChainSettings
from damc.learn.sri import SRI
from damc.learn.starts import NoiseStarts, PersistentStarts


@dataclass(frozen=True)
class ABPSettings(ChainSettings):
    """Choices of ABP; the defaults are those of the DAMC authors' comparison."""

    sigma: float = 1.0
    inference_steps: int = 100  # noiseless posterior moves from N(0, I) at test time


class ABP(SRI):
    """A decoder under N(0, I), by

        down the gradient of  E |x - g(z)|^2,    z ~ p(z | x) by Langevin.

    It is SRI with one difference: the chain of each training image continues where it ended at the
    image's last visit (see `PersistentStarts` for what is kept), so that a few moves at each visit
    add up to a long chain. In the first epoch the two are the same. Images that were not trained on
    have no chain: `infer` starts at noise.
    """

    name: ClassVar[str] = "abp"
    about: ClassVar[str] = "Gaussian prior; one posterior chain for each image, kept over epochs"
    settings_type: ClassVar[Any] = ABPSettings
    posterior_starts: ClassVar[type[NoiseStarts | PersistentStarts]] = PersistentStarts
