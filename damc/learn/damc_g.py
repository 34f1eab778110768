"""DAMC without an energy: the ablation DAMC-G of the paper."""

from __future__ import annotations

__all__ = ["GaussianDAMC"]

from typing import ClassVar

from damc.learn.damc import DAMC


class GaussianDAMC(DAMC):
    """Algorithm 1 under the prior N(0, I): decoder and amortizer alone are learned.

    It is DAMC with the energy fixed at zero, number for number: to that end the prior chains run
    here too, though nothing is learned from them. On N(0, I) they cost no network.
    """

    name: ClassVar[str] = "damc-g"
    about: ClassVar[str] = "DAMC with a Gaussian prior: no energy is learned"
    with_energy: ClassVar[bool] = False
