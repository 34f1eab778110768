"""What the settings of every way of learning have in common, and must satisfy."""

from __future__ import annotations

__all__ = ["adam", "check_settings", "shared_settings"]

from dataclasses import fields
from typing import Any

from damc.errors import BadInput

_POSITIVE = {
    "sigma",
    "posterior_step_size",
    "prior_step_size",
    "prior_sample_step_size",
    "decoder_rate",
    "energy_rate",
    "amortizer_rate",
    "clip",
}
_COUNTS = {
    "posterior_steps",
    "prior_steps",
    "prior_sample_steps",
    "inference_steps",
    "start_steps",
    "ema_every",
    "updates",
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
}
_NOT_NEGATIVE = {
    "energy_penalty",
    "test_steps",
    "beta",
    "strength",
    "amortizer_weight_decay",
    "score_penalty",
    "information",
}


def check_settings(settings: Any) -> None:
    """Raises `BadInput` naming the first setting that cannot be meant, known by its name.

    Example:
        >>> from damc.learn.vae import Settings
        >>> Settings(sigma=-1.0)
        Traceback (most recent call last):
        ...
        damc.errors.BadInput: sigma must be positive, got -1.0
    """
    for field in fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if value is None:
            continue
        if name in _POSITIVE and not value > 0:
            raise BadInput(f"{name} must be positive, got {value}")
        if name in _COUNTS and value < 1:
            raise BadInput(f"{name} must be at least 1, got {value}")
        if name in _NOT_NEGATIVE and not value >= 0:
            raise BadInput(f"{name} must not be negative, got {value}")
        if name == "p_uncond" and not 0 <= value <= 1:
            raise BadInput(f"p_uncond lies in [0, 1], got {value}")
        if name == "first" and not 0 <= value < 1:
            raise BadInput(f"first must lie in [0, 1), got {value}")
        if name == "decay" and value not in ("step", "cosine"):
            raise BadInput(f"decay must be 'step' or 'cosine', got {value!r}")
    staged = {"first", "stages"} & {field.name for field in fields(settings)}
    if staged and settings.horizon < 2:
        raise BadInput(
            f"horizon is {settings.horizon}, but stages are shares of it: "
            "give the number of iterations"
        )


def shared_settings(settings: Any, kind: Any, **changes: Any) -> Any:
    """Settings of type `kind` with the values that `settings` has under the same names."""
    known = {field.name for field in fields(kind)} & {field.name for field in fields(settings)}
    return kind(**{**{name: getattr(settings, name) for name in known}, **changes})


def adam(settings: Any) -> dict[str, Any]:
    """Options of Adam and AdamW that every method shares."""
    return {"betas": (settings.beta1, 0.999), "fused": True}
