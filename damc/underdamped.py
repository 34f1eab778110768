"""Underdamped Langevin: chains with momentum, which cross a stretched density in fewer moves."""

from __future__ import annotations

__all__ = ["Underdamped"]

from dataclasses import dataclass

import torch

from damc.density import LogProb, value_and_grad
from damc.errors import BadInput
from damc.langevin import Info, Kernel, State, evaluate


@dataclass(frozen=True)
class Underdamped(Kernel):
    """Langevin dynamics of a point z with velocity v,

        dz = v dt,    dv = grad log p(z) dt - friction v dt + sqrt(2 friction) dW,

    in moves of time h = `step_size` by the splitting "BAOAB" (Leimkuhler and Matthews 2013):
    half a kick of the gradient, half a drift, friction and noise, half a drift, half a kick. On a
    Gaussian its positions have exactly the target's variance at every stable step size; the
    unadjusted `Langevin` has a bias there. With very large friction a move is `Langevin`'s own,
    of step size s = h, with the noise of two moves averaged.

    A run of T moves costs T + 1 gradients, one more than `Langevin`. Velocities start at N(0, I),
    and go on in the next run if that is given the state.

    Args:
        step_size: h. It must stay below 2 standard deviations of the narrowest direction.
        steps: T.
        friction: how fast velocities are forgotten: a share exp(-friction h) is kept in a move.

    Example:
        >>> kernel = Underdamped(0.3, steps=5)
        >>> state, info = kernel.run(torch.zeros(3, 2), lambda z: -z.pow(2).sum(1))
        >>> state.z.shape, info.gradient_calls
        (torch.Size([3, 2]), 18)
    """

    friction: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.friction > 0:
            raise BadInput(f"friction must be positive, got {self.friction}")

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, Info]:
        start, h, v = state.z, state.step_size, state.velocity
        assert h is not None
        if v is None:
            v = torch.empty_like(start).normal_(generator=generator)
        value, grad, calls = evaluate(state, log_prob)
        keep = torch.exp(-self.friction * h)
        w = torch.empty_like(start).normal_(generator=generator)

        v = v + h / 2 * grad
        z = start + h / 2 * v
        v = keep * v + torch.sqrt(1 - keep**2) * w
        z = z + h / 2 * v
        new_value, new_grad = value_and_grad(log_prob, z)
        v = v + h / 2 * new_grad

        moved = (z - start).norm(dim=1)
        info = Info(value.new_ones(()).expand_as(value), moved, value, calls + len(z))
        return State(z, new_value, new_grad, h, state.moves + 1, v), info
