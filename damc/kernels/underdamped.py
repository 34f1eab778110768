"""Underdamped Langevin: chains with momentum, which cross a stretched density in fewer moves."""

from __future__ import annotations

__all__ = ["Underdamped"]

from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import LogProb
from damc.errors import BadInput
from damc.kernels.base import Kernel, State, StepInfo, evaluate
from damc.randomness import normal_like


@dataclass(frozen=True)
class Underdamped(Kernel):
    """Langevin dynamics of a point z with velocity v,

        dz = v dt,    dv = grad log p(z) dt - friction v dt + sqrt(2 friction) dW,

    in moves of time h = `step_size` by the splitting "BAOAB" (Leimkuhler and Matthews 2013):
    half a kick of the gradient, half a drift, friction and noise, half a drift, half a kick. On a
    Gaussian its positions have exactly the target's variance at every stable step size; the
    unadjusted `Langevin` has a bias there. With very large friction a move is `Langevin`'s own,
    of step size s = h, with the noise of two moves averaged.

    The last half kick of a move needs the gradient where the next move starts, so it is made there:
    a run of T moves costs T gradients, as many as one of `Langevin`. Velocities start at N(0, I),
    and go on in the next run if that is given the state.

    Args:
        step_size: h. It must stay below 2 standard deviations of the narrowest direction.
        steps: T.
        friction: how fast velocities are forgotten: a share exp(-friction h) is kept in a move.

    Example:
        >>> kernel = Underdamped(0.3, steps=5)
        >>> state, info = kernel.run(torch.zeros(3, 2), lambda z: -z.pow(2).sum(1))
        >>> state.z.shape, info.gradient_calls
        (torch.Size([3, 2]), 15)
    """

    friction: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.friction > 0:
            raise BadInput(f"friction must be positive, got {self.friction}")

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, h, v = state.z, state.step_size, state.velocity
        assert h is not None
        value, grad, calls = evaluate(state, log_prob)
        grad = self.pull(grad)
        # Besides this move's half, the half that the last one left out.
        v = normal_like(z, generator) + h / 2 * grad if v is None else v + h * grad
        keep = torch.exp(torch.as_tensor(-self.friction * h, dtype=z.dtype, device=z.device))
        w = normal_like(z, generator)

        z = z + self.push(h / 2 * v)
        v = keep * v + torch.sqrt(1 - keep**2) * w
        z = z + self.push(h / 2 * v)
        state = State(z, step_size=h, moves=state.moves + 1, velocity=v)
        return state, StepInfo(value, calls)

    def relocate(self, state: State, where: Tensor, new: State) -> State:
        # A chain that is carried elsewhere keeps the velocity v + h/2 grad(z) that its last half
        # kick would have given it. That kick is postponed and will be made with the gradient at
        # the new point, so the difference is settled here.
        h, v = state.step_size, state.velocity
        assert h is not None and state.grad is not None and new.grad is not None
        if v is not None:
            v = torch.where(where[:, None], v + h / 2 * self.pull(state.grad - new.grad), v)
        return super().relocate(state, where, new)._replace(velocity=v)
