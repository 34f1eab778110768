"""Named optimizers with their learning rates: what every learner updates its networks by."""

from __future__ import annotations

__all__ = ["LearningRate", "Optimizers"]

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from damc.errors import BadInput


@dataclass(frozen=True)
class LearningRate:
    """A learning rate and how it falls.

    "step" is the paper's: times 0.99 every 1,000 iterations, not below `floor`. "cosine" falls
    along half a cosine to `floor` over `horizon` iterations and stays there. Both begin to fall at
    iteration `start` and depend on the iteration alone, so that a resumed run needs no state.
    """

    rate: float
    decay: str = "step"
    horizon: int = 1
    floor: float = 1e-5
    start: int = 0

    def at(self, iteration: int) -> float:
        """The rate of an iteration, counted from 0."""
        k, floor = max(iteration - self.start, 0), min(self.floor, self.rate)
        if self.decay == "step":
            return max(self.rate * 0.99 ** (k // 1000), floor)
        if self.decay == "cosine":
            done = min(k / self.horizon, 1.0)
            return floor + (self.rate - floor) * (1 + math.cos(done * math.pi)) / 2
        raise BadInput(f"decay must be 'step' or 'cosine', got {self.decay!r}")


class Optimizers:
    """Adam for each named part of a learner: gradients are averaged, clipped and applied.

    Args:
        clip: largest norm of a gradient.

    Attributes:
        rates: the learning rate of each name.
        average: averages gradients over processes; set by the training loop if there are several.
    """

    def __init__(self, clip: float = 100.0) -> None:
        self.clip = clip
        self.rates: dict[str, LearningRate] = {}
        self.average: Callable[[list[Tensor]], None] | None = None
        self._optimizers: dict[str, torch.optim.Optimizer] = {}

    def add(
        self,
        name: str,
        parameters: Iterable[nn.Parameter],
        rate: LearningRate,
        *,
        betas: tuple[float, float] = (0.5, 0.999),
        weight_decay: float | None = None,
    ) -> None:
        """Adds an optimizer of these parameters: Adam, or AdamW if a weight decay is given."""
        options: dict[str, Any] = {"lr": rate.rate, "betas": betas, "fused": True}
        weights = list(parameters)
        self._optimizers[name] = (
            torch.optim.Adam(weights, **options)
            if weight_decay is None
            else torch.optim.AdamW(weights, weight_decay=weight_decay, **options)
        )
        self.rates[name] = rate

    def step(self, name: str, loss: Tensor, iteration: int) -> Tensor:
        """One step of the optimizer `name` down `loss`; returns the norm of its gradient.

        Parameters that the loss does not depend on stay as they are.
        """
        optimizer = self._optimizers[name]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise BadInput(
                f"the parameters of the optimizer {name!r} must be those of the learner, got none "
                "that its loss depends on: was a network replaced, or moved so that it was?"
            )
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        if self.average is not None:
            self.average([p.grad for p in parameters if p.grad is not None])
        norm = nn.utils.clip_grad_norm_(parameters, self.clip, foreach=True)
        rate = self.rates[name].at(iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        for p in parameters:
            p.grad = None
        return norm

    def state(self) -> dict[str, Any]:
        """The state of every optimizer, by name."""
        return {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        for name, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._optimizers)
