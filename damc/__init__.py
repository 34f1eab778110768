"""Energy-based priors and any other density, sampled by diffusion-amortised MCMC."""

from __future__ import annotations

from damc.amortise import EMA, Amortiser
from damc.density import EnergyPrior, Posterior, product, tempered
from damc.distillation import History, distil
from damc.errors import BadInput, Diverged
from damc.jump import Gaussian, Jump
from damc.langevin import MALA, Info, Kernel, Langevin, State
from damc.learn import DAMC, Learner
from damc.model import LatentModel
from damc.train import fit, load

__all__ = [
    "DAMC",
    "EMA",
    "MALA",
    "Amortiser",
    "BadInput",
    "Diverged",
    "EnergyPrior",
    "Gaussian",
    "History",
    "Info",
    "Jump",
    "Kernel",
    "Langevin",
    "LatentModel",
    "Learner",
    "Posterior",
    "State",
    "distil",
    "fit",
    "load",
    "product",
    "tempered",
]
__version__ = "0.1.0"
