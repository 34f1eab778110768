"""Energy-based priors and any other density, sampled by diffusion-amortised MCMC."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from damc.amortise import EMA, Amortiser
    from damc.density import EnergyPrior, Posterior, product, tempered
    from damc.distillation import History, distil
    from damc.errors import BadInput, Diverged
    from damc.jump import Gaussian, Jump
    from damc.langevin import MALA, Info, Kernel, Langevin, State
    from damc.learn import DAMC, Learner
    from damc.model import LatentModel
    from damc.tasks.anomaly import AnomalyDetector
    from damc.train import fit, load
    from damc.underdamped import Underdamped

__version__ = "0.1.0"

_PLACES = {
    "damc.amortise": ("EMA", "Amortiser"),
    "damc.density": ("EnergyPrior", "Posterior", "product", "tempered"),
    "damc.distillation": ("History", "distil"),
    "damc.errors": ("BadInput", "Diverged"),
    "damc.jump": ("Gaussian", "Jump"),
    "damc.langevin": ("MALA", "Info", "Kernel", "Langevin", "State"),
    "damc.learn": ("DAMC", "Learner"),
    "damc.model": ("LatentModel",),
    "damc.tasks.anomaly": ("AnomalyDetector",),
    "damc.train": ("fit", "load"),
    "damc.underdamped": ("Underdamped",),
}
_HOMES = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "DAMC",
    "EMA",
    "MALA",
    "Amortiser",
    "AnomalyDetector",
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
    "Underdamped",
    "distil",
    "fit",
    "load",
    "product",
    "tempered",
]


def __getattr__(name: str) -> Any:
    # Names are imported when first used, so that `damc --help` does not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'damc' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
