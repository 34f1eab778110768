"""Two stages: pre-train a model, then learn from its samples while it stays as it is."""

from __future__ import annotations

__all__ = ["Stages"]

from dataclasses import dataclass

from damc.learn.optimizers import LearningRate


@dataclass(frozen=True)
class Stages:
    """When the second stage begins: after a share of the horizon.

    A run with a shorter horizon has both stages in the same proportion.

    Args:
        first: share of the first stage, in [0, 1).
        horizon: iterations of both stages together.
    """

    first: float
    horizon: int

    @property
    def begin(self) -> int:
        """The first iteration of the second stage, which has at least one."""
        return min(round(self.first * self.horizon), self.horizon - 1)

    def rate(self, rate: float, decay: str, stage: int) -> LearningRate:
        """A learning rate that falls over stage 1 or 2."""
        if stage == 1:
            return LearningRate(rate, decay, max(self.begin, 1))
        return LearningRate(rate, decay, max(self.horizon - self.begin, 1), start=self.begin)
