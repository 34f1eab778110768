"""Whether training still makes sense: what is finite may be nonsense all the same.

`Watch` looks at the logged numbers and at a few samples, and names what it sees. Most faults pass,
so each is first a warning; one from which no training returns, such as a decoder whose every pixel
is saturated and whose gradient is therefore zero, raises `Diverged` when it stays.

    saturated      every pixel of the samples is black or white, where the images are not
    dead           a network's gradient is exactly zero
    error          reconstructions are worse than the mean image, and do not get better
    latent         latent points are far outside the prior N(0, I)
    prior          samples of the learned prior are: its density does not fall off, it is improper
    energy         the energy gap between posterior and prior samples grows without end
    sigma          the observation noise is below the images' own grid, or hides all they vary by
"""

from __future__ import annotations

__all__ = ["HOPELESS", "Watch"]

import math
import warnings
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from damc.errors import Diverged, Unable
from damc.learn import Learner

HOPELESS = ("saturated", "dead", "latent", "prior", "energy")
"""Faults from which training does not recover."""

_SAMPLES = 16
_LATENT_LIMIT = 1e3  # mean square of a coordinate; it is 1 under N(0, I)
_GRID = 2 / 255  # between neighboring values of 8-bit images in [-1, 1]


class Watch:
    """Looks at a learner while it trains.

    Args:
        learner: the learner.
        patience: iterations for which a hopeless fault may stay.

    Attributes:
        since: the faults there are by now, with the iteration at which each was first seen.
    """

    def __init__(self, learner: Learner, *, patience: int = 50) -> None:
        self.learner, self.patience = learner, patience
        self.since: dict[str, int] = {}
        self._next = self._seen = learner.iteration
        self._before: dict[str, int] = {}
        self._errors: list[float] = []
        self._gaps: list[float] = []

    def look(self, x: Tensor, values: Mapping[str, float], *, last: bool = False) -> list[str]:
        """The faults that are new, a sentence each, which are also raised as warnings.

        Looks become rarer, from every 10th to every 200th iteration.

        Args:
            x: the last batch, ``(B, C, H, W)`` in [-1, 1].
            values: what the iteration logged.
            last: look in any case, since no other look follows.

        Raises:
            Diverged: when a hopeless fault has stayed for `patience` iterations.
        """
        k = self.learner.iteration
        if k < self._next and not last:
            return []
        self._next = k + min(max(10, k // 10), 200)
        found = dict(self._faults(x, values))
        self._before = {name: self._before.get(name, self._seen) for name in found}
        self.since = {name: self.since.get(name, k) for name in found}
        self._seen = k
        for name in HOPELESS:
            if name in found and k - self.since[name] >= self.patience:
                raise Diverged(f"{found[name]}, since iteration {self.since[name]}")
        new = [found[name] for name, first in self.since.items() if first == k]
        for sentence in new:
            warnings.warn(f"iteration {k}: {sentence}", stacklevel=3)
        return new

    def short(self) -> str:
        """The faults there are, in a few words for a progress bar."""
        return f" WARNING: {', '.join(self.since)}" if self.since else ""

    def good_until(self) -> float:
        """The last look before the hopeless faults that there are; infinite without any."""
        return min(
            (self._before[name] for name in self.since if name in HOPELESS), default=math.inf
        )

    def _faults(self, x: Tensor, values: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        spread = float(x.float().var(0).mean()) if len(x) > 1 else math.inf
        yield from self._in_numbers(values, spread)
        yield from self._in_samples(x)
        sigma = getattr(self.learner.settings, "sigma", None)
        if sigma is not None and sigma < _GRID / 10:
            yield "sigma", f"sigma must not be far below {_GRID:.2g}, the grid of pixels: {sigma:g}"
        if sigma is not None and math.isfinite(spread) and sigma > 100 * math.sqrt(spread) > 0:
            yield "sigma", f"sigma hides all that the images vary by: {sigma:g}"

    def _in_numbers(self, values: Mapping[str, float], spread: float) -> Iterator[tuple[str, str]]:
        dead = [n.removesuffix("_gradient") for n in values if n.endswith("_gradient")]
        dead = [name for name in dead if values[f"{name}_gradient"] == 0]
        if dead:
            yield "dead", f"the gradient of the {dead[0]} is exactly zero: it learns no more"
        mse = values.get("mse", math.nan)
        before = min(self._errors[:-2], default=math.inf)
        if self.learner.iteration >= 50 and mse > 1.05 * spread and mse >= before:
            yield (
                "error",
                f"reconstructions are worse than the mean image and not improving: a mean squared "
                f"error of {mse:.3g}, it has {spread:.3g}",
            )
        self._errors.append(mse)
        norm = values.get("z_norm", 0.0)
        if norm > _LATENT_LIMIT:
            yield "latent", f"latent points explode: a mean square of {norm:.3g}, N(0, I) has 1"
        gap = abs(values.get("energy_difference", 0.0))
        self._gaps = [*self._gaps[-3:], gap]
        grows = len(self._gaps) == 4 and all(
            b > 1.2 * a for a, b in zip(self._gaps, self._gaps[1:], strict=False)
        )
        if gap > 1e4 or (grows and gap > 100):
            yield "energy", f"the energy gap grows without end: {gap:.3g}"

    @torch.no_grad()
    def _in_samples(self, x: Tensor) -> Iterator[tuple[str, str]]:
        learner = self.learner
        if not learner.sources:
            return
        learner.eval()
        generator = torch.Generator(learner.device).manual_seed(0)
        try:
            z = learner.sample_latent(_SAMPLES, generator=generator)
            images = learner.decode(z)
        except Unable:
            return
        norm = float(z.float().square().mean())
        if norm > _LATENT_LIMIT:
            yield (
                "prior",
                f"samples of the prior explode, as if its density were improper: a mean square "
                f"of {norm:.3g}, N(0, I) has 1",
            )
        white, seen = _saturated(images), _saturated(x)
        if white > 0.99 and seen < 0.9:
            yield (
                "saturated",
                f"{white:.0%} of the pixels of samples are black or white, "
                f"{seen:.0%} of those of the images",
            )


def _saturated(x: Tensor) -> float:
    return float((x.abs() > 0.999).float().mean())
