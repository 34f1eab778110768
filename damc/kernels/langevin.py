"""Unadjusted Langevin dynamics: every move is taken, at the price of a bias."""

from __future__ import annotations

__all__ = ["Langevin"]

from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import LogProb
from damc.kernels.base import Kernel, State, StepInfo, evaluate
from damc.randomness import normal_like


@dataclass(frozen=True)
class Langevin(Kernel):
    """Unadjusted Langevin, the paper's equation 3.

    Its stationary distribution differs from the target: on N(0, 1 / l) the variance is
    1 / (l (1 - l s^2 / 4)), and from l s^2 >= 4 on the chain explodes. Without noise it is
    gradient ascent with rate s^2 / 2.

    Args:
        step_size: s.
        steps: T.
        noise: False drops the s w term.

    Example:
        >>> state, info = Langevin(0.1, steps=5).run(torch.zeros(3, 2), lambda z: -z.pow(2).sum(1))
        >>> state.z.shape, info.gradient_calls
        (torch.Size([3, 2]), 15)
    """

    noise: bool = True

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, s = state.z, state.step_size
        assert s is not None
        value, grad, calls = evaluate(state, log_prob)
        if self.scale is not None:
            move = s**2 / 2 * self.pull(grad)
            if self.noise:
                move = move + s * normal_like(z, generator)
            z = z + self.push(move)
            return State(z, step_size=s, moves=state.moves + 1), StepInfo(value, calls)
        z = _plus(z, s**2 / 2, grad)
        if self.noise:
            z = _plus(z, s, normal_like(z, generator))
        return State(z, step_size=s, moves=state.moves + 1), StepInfo(value, calls)


def _plus(z: Tensor, scale: float | Tensor, direction: Tensor) -> Tensor:
    """z + scale * direction in one operation, the scale being one number or one for each chain."""
    if isinstance(scale, Tensor):
        return torch.addcmul(z, direction, scale.expand_as(z))
    return torch.add(z, direction, alpha=scale)
