"""Gradient ascent to a mode, with a step size for each chain: Langevin moves without noise."""

from __future__ import annotations

__all__ = ["Ascent"]

from dataclasses import dataclass

import torch

from damc.density import LogProb, value_and_grad
from damc.kernels.base import Kernel, State, StepInfo, evaluate

_ROUNDING = 16  # times the precision of a log-density: at a mode, a move may round downhill


@dataclass(frozen=True)
class Ascent(Kernel):
    """Langevin moves without noise, of which none goes downhill.

    A move to a lower log-density, or to where it is not finite, is taken back and halves the step
    size of its chain. So a step size that is too large costs moves, where `Langevin` without noise
    would explode. It finds modes; it draws no samples.

    Args:
        step_size: s of the first move, whose rate is s^2 / 2.
        steps: T; they take T + 1 gradients.

    Example:
        >>> state, _ = Ascent(100.0, steps=30).run(torch.ones(3, 2), lambda z: -z.pow(2).sum(1))
        >>> bool((state.z.abs() < 1e-3).all())
        True
    """

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, s = state.z, state.step_size
        assert s is not None
        value, grad, calls = evaluate(state, log_prob)
        z_new = z + self.push(s**2 / 2 * self.pull(grad))
        new = State(z_new, *value_and_grad(log_prob, z_new))
        assert new.log_prob is not None and new.grad is not None
        rounding = _ROUNDING * torch.finfo(value.dtype).eps * value.abs()
        uphill = (new.log_prob >= value - rounding) & new.grad.isfinite().all(1)
        here = self.relocate(state._replace(log_prob=value, grad=grad), uphill, new)
        s = s * torch.where(uphill, 1.0, 0.5).to(z)[:, None]
        info = StepInfo(value, calls + len(z), acceptance=uphill.to(value))
        return here._replace(step_size=s, moves=state.moves + 1), info
