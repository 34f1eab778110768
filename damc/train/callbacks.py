"""Callbacks of `damc.fit`: anything to do when metrics are logged, and a clean way to stop.

A callback is any function of a `Progress`. It is called on the first process whenever metrics are
logged; raising `StopTraining` ends the training with a checkpoint.
"""

from __future__ import annotations

__all__ = ["Callback", "EarlyStopping", "Progress", "StopTraining"]

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from damc.errors import BadInput
from damc.learn import Learner
from damc.train.run import Run


class StopTraining(Exception):
    """Raised by a callback: training ends here, with a checkpoint, and `damc.fit` returns."""


@dataclass(frozen=True)
class Progress:
    """How far training is, as callbacks see it.

    Attributes:
        learner: in evaluation mode.
        run: its run folder, or None.
        iteration: learning updates done.
        iterations: how many there will be.
        metrics: of this iteration, by name.
    """

    learner: Learner
    run: Run | None
    iteration: int
    iterations: int
    metrics: Mapping[str, float]


Callback = Callable[[Progress], None]


class EarlyStopping:
    """Stops when a quantity has not improved for a while.

    A metric of a single batch is noisy, and one of training images falls for as long as the model
    learns them by heart: give `measure` to watch held-out images instead.

    Args:
        metric: the name of a metric that should fall.
        measure: a number that should fall, computed from the learner, in place of a metric.
        patience: iterations without an improvement after which training stops.
        least: by how much a value must be lower to count as an improvement.
        every: iterations between two looks, for a `measure` that takes long.

    Attributes:
        best: the lowest value so far.
        best_iteration: the iteration that had it.

    Example:
        >>> import damc
        >>> learner = damc.DAMC.from_preset("digits-small", posterior_steps=2, prior_steps=2)
        >>> stop = EarlyStopping(measure=lambda learner: 1.0, patience=2)  # never improves
        >>> learner = damc.fit(
        ...     learner, "digits", iterations=50, log_every=1, callbacks=[stop], progress=False
        ... )
        >>> learner.iteration
        3
    """

    def __init__(
        self,
        metric: str = "mse",
        *,
        measure: Callable[[Learner], float] | None = None,
        patience: int = 500,
        least: float = 0.0,
        every: int = 1,
    ) -> None:
        if patience < 1 or every < 1 or least < 0:
            raise BadInput(
                "patience and every must be at least 1 and least not negative, got "
                f"{patience}, {every} and {least}"
            )
        self.metric, self.measure = metric, measure
        self.patience, self.least, self.every = patience, least, every
        self.best, self.best_iteration = math.inf, 0
        self._looked: int | None = None

    def __call__(self, progress: Progress) -> None:
        k = progress.iteration
        if self._looked is not None and k - self._looked < self.every:
            return
        self._looked = k
        value = self._value(progress)
        if value < self.best - self.least:
            self.best, self.best_iteration = value, k
        elif k - self.best_iteration >= self.patience:
            what = self.metric if self.measure is None else "the measure"
            raise StopTraining(
                f"{what} has not fallen below {self.best:.4g} since iteration {self.best_iteration}"
            )

    def _value(self, progress: Progress) -> float:
        if self.measure is not None:
            return float(self.measure(progress.learner))
        if self.metric not in progress.metrics:
            known = ", ".join(progress.metrics)
            raise BadInput(f"metric must be one of {known}, got {self.metric!r}")
        return progress.metrics[self.metric]
