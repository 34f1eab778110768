"""Groups of settings that ways of learning share, and what settings must satisfy.

A method's settings are a frozen dataclass made of these groups and its own fields.
"""

from __future__ import annotations

__all__ = [
    "KERNELS",
    "AmortizerSettings",
    "ChainSettings",
    "ModelSettings",
    "OptimizerSettings",
    "PriorSettings",
    "StartSettings",
    "StoreSettings",
    "check_names",
    "check_settings",
]

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from numbers import Integral, Real
from typing import Any

from damc.diffusion.sampling import SOLVERS
from damc.errors import BadInput
from damc.kernels.base import Kernel
from damc.kernels.langevin import Langevin
from damc.kernels.underdamped import Underdamped
from damc.learn.optimizers import LearningRate

KERNELS: dict[str, Callable[[float, int], Kernel]] = {
    "langevin": Langevin,
    # Chains that start far up a slope overshoot with less friction than this.
    "underdamped": partial(Underdamped, friction=10.0),
}
"""How posterior chains may move, by name: from a step size and a number of moves."""


@dataclass(frozen=True)
class OptimizerSettings:
    """How the decoder, and whatever else has no rate of its own, is optimized."""

    decoder_rate: float = 2e-4
    beta1: float = 0.5
    decay: str = "step"
    horizon: int = 1  # of decay = "cosine", and of stages
    clip: float = 100.0

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's."""
        return self.beta1, 0.999

    def block(self, *groups: type, **changes: Any) -> dict[str, Any]:
        """The values of whole groups of settings by name, and changes to them."""
        return {f.name: getattr(self, f.name) for group in groups for f in fields(group)} | changes

    def learning_rate(self, rate: float) -> LearningRate:
        """A learning rate that falls as these settings say."""
        return LearningRate(rate, self.decay, self.horizon)


@dataclass(frozen=True)
class ModelSettings(OptimizerSettings):
    """The likelihood around the decoder."""

    sigma: float = 0.1  # standard deviation of the likelihood


@dataclass(frozen=True)
class ChainSettings(ModelSettings):
    """The posterior chains that a decoder is learned from."""

    posterior_steps: int = 30  # T of the posterior chain
    posterior_step_size: float = 0.1
    posterior_kernel: str = "langevin"  # "underdamped": with momentum, for fewer moves
    decoder_updates: int = 1  # gradient steps of the decoder on the same posterior samples

    @property
    def posterior_moves(self) -> Kernel:
        """How posterior chains move."""
        return KERNELS[self.posterior_kernel](self.posterior_step_size, self.posterior_steps)


@dataclass(frozen=True)
class PriorSettings(ModelSettings):
    """An energy, and the prior chains that it is learned from."""

    prior_steps: int = 60  # T of the prior chain
    prior_step_size: float = 0.4  # the paper's text says 0.1
    energy_rate: float = 1e-4
    energy_penalty: float = 0.0  # weight of mean E^2 over both kinds of samples
    prior_sample_steps: int = 100  # prior moves when images are drawn from the energy
    prior_sample_step_size: float | None = None  # of those; None: prior_step_size

    @property
    def prior_moves(self) -> Langevin:
        """How prior chains move."""
        return Langevin(self.prior_step_size, self.prior_steps)


@dataclass(frozen=True)
class AmortizerSettings:
    """How an amortizer learns the ends of posterior chains, and infers."""

    updates: int = 6  # M gradient steps of the amortizer
    encoder_updates: int | None = None  # the last of them that train its encoder too; None: all
    p_uncond: float = 0.2
    unconditional: str = "share"  # "both": losses with and without x on the whole batch, summed
    amortizer_rate: float = 2e-4
    amortizer_weight_decay: float = 1e-4
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time


@dataclass(frozen=True)
class StartSettings:
    """The chains of Algorithm 1 start at samples of the amortizer's EMA copy."""

    start_solver: str = "ancestral"  # how they are drawn
    start_steps: int = 100
    prior_starts: str = "conditional"  # at q(z | x); "unconditional": at q(z); "noise": at neither
    noise_negatives: bool = True  # and as many prior chains from N(0, I)
    ema_rate: float = 0.005
    ema_every: int = 10  # iterations


@dataclass(frozen=True)
class StoreSettings:
    """Posterior samples that are kept, for what learns from them at no decoder's cost."""

    store: int = 0  # latest ones, from which a q(z) of its own learns; 0: none
    store_components: int = 40  # Gaussians that it begins as, each of at least 7 d stored samples
    store_scales: int = 1  # spreads that each has, an odd number; several have heavier tails
    store_updates: int = 1  # gradient steps of it in an iteration
    store_batch: int = 256
    store_rate: float = 1e-3  # its learning rate
    store_energy_updates: int = 0  # further steps of the energy, against stored samples


_POSITIVE = {
    "sigma",
    "posterior_step_size",
    "prior_step_size",
    "prior_sample_step_size",
    "decoder_rate",
    "energy_rate",
    "encoder_rate",
    "amortizer_rate",
    "store_rate",
    "warm_up_rate",
    "discriminator_rate",
    "adam_rate",
    "spread",
    "clip",
}
_COUNTS = {
    "posterior_steps",
    "warm_posterior_steps",
    "prior_steps",
    "prior_sample_steps",
    "inference_steps",
    "start_steps",
    "ema_every",
    "updates",
    "encoder_updates",
    "decoder_updates",
    "distillation_updates",
    "horizon",
    "stages",
    "proposals",
    "components",
    "ring",
    "hidden",
    "score_draws",
    "energy_updates",
    "store_batch",
    "store_components",
    "store_scales",
    "store_updates",
    "warm_up_batch",
    "r1_every",
}
_NOT_NEGATIVE = {
    "store_energy_updates",
    "energy_penalty",
    "decoder_penalty",
    "store",
    "test_steps",
    "beta",
    "strength",
    "amortizer_weight_decay",
    "score_penalty",
    "information",
    "gradient_penalty",
    "r1",
    "encoder_iterations",
    "warmup_iterations",
    "code_weight",
    "image_weight",
}
_CHOICES = {
    "decay": ("step", "cosine"),
    "posterior_kernel": tuple(KERNELS),
    "start_solver": ("ancestral", *SOLVERS),
    "unconditional": ("share", "both"),
    "prior_starts": ("conditional", "unconditional", "noise"),
    "regularizer": ("l2", "gradient", "spectral", "none"),
    "score": ("cross-entropy", "features"),
    "sampler": ("langevin", "adam"),
    "condition": ("gradient", "code"),
}
_SHARES = {
    "p_uncond": "[0, 1]",
    "alpha": "[0, 1]",
    "first": "[0, 1)",
    "dropout": "[0, 1)",
    "warm_up": "[0, 1)",
    "beta1": "[0, 1)",
    "beta2": "[0, 1)",
    "ema_rate": "(0, 1]",
    "w_rate": "(0, 1]",
}
_NUMBERS = _POSITIVE | _COUNTS | _NOT_NEGATIVE | _SHARES.keys()


def check_names(names: Iterable[str], kind: Any) -> None:
    """Raises `BadInput` for the first name that is no setting of a dataclass.

    Example:
        >>> check_names(["sgma"], ModelSettings)
        Traceback (most recent call last):
        ...
        damc.errors.BadInput: there is no setting 'sgma'; did you mean 'sigma'?
    """
    known = [field.name for field in fields(kind)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(known)}"
            raise BadInput(f"there is no setting {name!r}; {hint}")


def check_settings(settings: Any) -> None:
    """Raises `BadInput` naming the first setting that is out of range, known by its name.

    Example:
        >>> ModelSettings(sigma=-1.0)
        Traceback (most recent call last):
        ...
        damc.errors.BadInput: sigma must be positive, got -1.0
    """
    for field in fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if value is None:
            continue
        if name in _NUMBERS and not isinstance(value, Real):
            raise BadInput(f"{name} must be a number, got {value!r}")
        if name in _COUNTS and not isinstance(value, Integral):
            raise BadInput(f"{name} must be a whole number, got {value}")
        if name in _POSITIVE and not value > 0:
            raise BadInput(f"{name} must be positive, got {value}")
        if name in _COUNTS and value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}")
        if name in _NOT_NEGATIVE and not value >= 0:
            raise BadInput(f"{name} must not be negative, got {value}")
        if name in _SHARES and not _within(value, _SHARES[name]):
            raise BadInput(f"{name} must lie in {_SHARES[name]}, got {value}")
        if name in _CHOICES and value not in _CHOICES[name]:
            names = " or ".join(map(repr, _CHOICES[name]))
            raise BadInput(f"{name} must be {names}, got {value!r}")
    staged = {"first", "stages"} & {field.name for field in fields(settings)}
    if staged and settings.horizon < 2:
        raise BadInput(
            f"horizon must be at least 2, since stages are shares of it, got {settings.horizon}: "
            "give the number of iterations"
        )


def _within(value: float, interval: str) -> bool:
    """Whether a value lies in an interval from 0 to 1, written with its brackets."""
    above = value >= 0 if interval.startswith("[") else value > 0
    return above and (value <= 1 if interval.endswith("]") else value < 1)
