"""Two stages: pre-train a model, then learn the law of its codes while it stays as it is."""

from __future__ import annotations

__all__ = ["LaterRate", "SecondStage"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from damc.latent import LatentModel
from damc.learn.latent import LatentLearner
from damc.learn.learner import Learner, Metrics, Rate

if TYPE_CHECKING:
    from damc.nets.networks import Networks


@dataclass(frozen=True)
class LaterRate(Rate):
    """A learning rate whose fall begins at iteration `start`."""

    start: int = 0

    def at(self, iteration: int) -> float:
        """The rate of an iteration, counted from 0."""
        return super().at(max(iteration - self.start, 0))


class SecondStage(LatentLearner):
    """Pre-trains `base` for a share of the horizon, then learns from the codes it gives.

    The share is the setting `first`, of the setting `horizon`: a run with a shorter horizon has
    both stages in the same proportion. In the second stage the base is not touched, and a
    subclass's `learn` gets draws of its posterior. Until then samples come from N(0, I).

    Args:
        base: a learner with a `model` and `codes(x, index, generator)`, draws of z given x.
        settings: choices, with `first`, `horizon`, `decay` and `clip` among them.
        networks: the description from which the networks were built, kept in `config`.

    Attributes:
        second_sources: what the second stage adds to the ways of drawing samples, the best first.
    """

    second_sources: ClassVar[tuple[str, ...]]
    base: Any

    def __init__(self, base: Learner, settings: Any, networks: Networks | None = None) -> None:
        super().__init__(settings, networks)
        self.base = base
        self.clip = settings.clip

    @staticmethod
    def begins_at(settings: Any) -> int:
        """The first iteration of the second stage."""
        first, horizon = float(settings.first), int(settings.horizon)
        return round(first * horizon)

    @property
    def ready(self) -> bool:
        """Whether the second stage has begun, so that there is something to draw from."""
        return self.iteration > self.begins_at(self.settings)

    @property
    def sources(self) -> tuple[str, ...]:
        """The ways to draw from this model, the best first; at first only the base's prior."""
        return (*self.second_sources, "gaussian") if self.ready else ("gaussian",)

    @property
    def model(self) -> LatentModel:
        """The base's decoder and prior."""
        return self.base.model  # type: ignore[no-any-return]

    def second_rate(self, rate: float) -> LaterRate:
        """A rate that falls over the second stage."""
        s, start = self.settings, self.begins_at(self.settings)
        return LaterRate(rate, s.decay, max(s.horizon - start, 1), start=start)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        if self.iteration < self.begins_at(self.settings):
            self.base.synchronize = self.synchronize
            metrics: Metrics = self.base.step(x, index, generator)
        else:
            metrics = self.learn(self.base.codes(x, index, generator), x, index, generator)
        self.iteration += 1
        return metrics

    def learn(
        self, z: Tensor, x: Tensor, index: Tensor, generator: torch.Generator | None
    ) -> Metrics:
        """One iteration of the second stage.

        Args:
            z: draws of the base's posterior, ``(B, d)``.
            x: the images they belong to, ``(B, C, H, W)``.
            index: the images' places in the data set, ``(B,)``.
            generator: source of all randomness.
        """
        raise NotImplementedError

    def infer(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Latent points of images as the base infers them, ``(B, d)``."""
        return self.base.infer(x, generator=generator)  # type: ignore[no-any-return]

    def reconstruct(
        self, x: Tensor, *, refine: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        """Images as the base sees them, of the shape of x."""
        return self.base.reconstruct(x, refine=refine, generator=generator)  # type: ignore[no-any-return]

    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """The base's score, ``(B,)``: higher is more anomalous."""
        return self.base.anomaly_score(x, generator=generator)  # type: ignore[no-any-return]

    def resume_state(self) -> dict[str, Any]:
        """What the next iteration depends on besides the weights, the base's share included."""
        return {**super().resume_state(), "base": self.base.resume_state()}

    def load_resume_state(self, state: dict[str, Any]) -> None:
        """Takes back what `resume_state` gave."""
        super().load_resume_state(state)
        self.base.load_resume_state(state["base"])
