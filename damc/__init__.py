"""Energy-based priors and any other density, sampled by diffusion-amortized MCMC."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from damc.amortize import EMA, Amortizer, History, distill
    from damc.anomaly.detector import AnomalyDetector
    from damc.anomaly.files import load
    from damc.density import product, tempered
    from damc.errors import BadInput, Diverged
    from damc.kernels.base import Info, Kernel, State, StepInfo
    from damc.kernels.hmc import HMC
    from damc.kernels.independence import Gaussian, Independence
    from damc.kernels.langevin import Langevin
    from damc.kernels.mala import MALA
    from damc.kernels.smc import anneal
    from damc.kernels.underdamped import Underdamped
    from damc.latent import EnergyPrior, LatentModel, Posterior
    from damc.learn import DAMC, Learner
    from damc.sampling.assess import Assessment, assess
    from damc.sampling.draws import Draws
    from damc.sampling.sample import sample
    from damc.train.callbacks import EarlyStopping, StopTraining
    from damc.train.loop import fit

__version__ = "0.2.0"

_PLACES = {
    "damc.amortize": ("EMA", "Amortizer", "History", "distill"),
    "damc.anomaly.detector": ("AnomalyDetector",),
    "damc.anomaly.files": ("load",),
    "damc.density": ("product", "tempered"),
    "damc.errors": ("BadInput", "Diverged"),
    "damc.kernels.base": ("Info", "Kernel", "State", "StepInfo"),
    "damc.kernels.hmc": ("HMC",),
    "damc.kernels.independence": ("Gaussian", "Independence"),
    "damc.kernels.langevin": ("Langevin",),
    "damc.kernels.mala": ("MALA",),
    "damc.kernels.smc": ("anneal",),
    "damc.kernels.underdamped": ("Underdamped",),
    "damc.latent": ("EnergyPrior", "LatentModel", "Posterior"),
    "damc.learn": ("DAMC", "Learner"),
    "damc.sampling.assess": ("Assessment", "assess"),
    "damc.sampling.draws": ("Draws",),
    "damc.sampling.sample": ("sample",),
    "damc.train.callbacks": ("EarlyStopping", "StopTraining"),
    "damc.train.loop": ("fit",),
}
_HOMES = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "DAMC",
    "EMA",
    "HMC",
    "MALA",
    "Amortizer",
    "AnomalyDetector",
    "Assessment",
    "BadInput",
    "Diverged",
    "Draws",
    "EarlyStopping",
    "EnergyPrior",
    "Gaussian",
    "History",
    "Info",
    "Independence",
    "Kernel",
    "Langevin",
    "LatentModel",
    "Learner",
    "Posterior",
    "State",
    "StepInfo",
    "StopTraining",
    "Underdamped",
    "anneal",
    "assess",
    "distill",
    "fit",
    "load",
    "product",
    "sample",
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
