"""Metropolis-adjusted Langevin: moves are accepted or rejected, which removes the bias."""

from __future__ import annotations

__all__ = ["MALA"]

import math
from dataclasses import dataclass

import torch

from damc.density import LogProb, value_and_grad
from damc.kernels.base import (
    Kernel,
    State,
    StepInfo,
    check_target_acceptance,
    evaluate,
)
from damc.randomness import normal_like


@dataclass(frozen=True)
class MALA(Kernel):
    """Metropolis-adjusted Langevin: the same move, accepted with the probability that makes the
    target exactly stationary (Roberts and Tweedie 1996).

    Args:
        step_size: s; the first one if it is adapted.
        steps: T.
        target_acceptance: adapt log s towards this mean acceptance (0.574 is optimal in high
            dimension) by stochastic approximation with gains that vanish, all chains sharing
            one factor. None keeps s fixed. The adapted value is in ``state.step_size``; pass the
            state to the next `run` to go on from it.
        scale: preconditioner; see `Kernel`.
    """

    target_acceptance: float | None = 0.574

    def __post_init__(self) -> None:
        super().__post_init__()
        check_target_acceptance(self.target_acceptance)

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, s = state.z, state.step_size
        assert s is not None
        value, grad, calls = evaluate(state, log_prob)
        w = normal_like(z, generator)
        pulled = self.pull(grad)
        proposal = z + self.push(s**2 / 2 * pulled + s * w)
        new_value, new_grad = value_and_grad(log_prob, proposal)
        calls += len(z)

        # log q(z | z') - log q(z' | z), with the backward move's noise solved for.
        back = -w - s / 2 * (pulled + self.pull(new_grad))
        log_ratio = new_value - value + (w.square() - back.square()).sum(1) / 2
        # Outside the support the gradient means nothing; such a proposal is simply refused, and so
        # is one where the log-density or its gradient is NaN.
        outside = new_value == -math.inf
        divergent = ~(outside | log_ratio.isfinite())
        log_ratio = torch.where(outside | divergent, -math.inf, log_ratio)
        here = state._replace(log_prob=value, grad=grad)
        there = State(proposal, new_value, new_grad)
        moved, acceptance = self.adaptive_metropolis(
            here, there, log_ratio, self.target_acceptance, generator
        )
        return moved, StepInfo(value, calls, acceptance, divergent=divergent)
