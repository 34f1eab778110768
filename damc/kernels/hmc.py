"""Hamiltonian Monte Carlo: each move follows the density's own dynamics for a while."""

from __future__ import annotations

__all__ = ["HMC"]

import math
from dataclasses import dataclass

import torch

from damc.density import LogProb, value_and_grad
from damc.errors import BadInput
from damc.kernels.base import (
    Kernel,
    State,
    StepInfo,
    check_target_acceptance,
    evaluate,
)
from damc.randomness import normal_like, uniform_like

_DIVERGENT = 1000.0  # an energy error beyond which a trajectory counts as divergent, as in Stan


@dataclass(frozen=True)
class HMC(Kernel):
    """Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011): a fresh momentum v ~ N(0, I), then
    `leapfrogs` steps of size h,

        v <- v + h/2 grad log p(z),    z <- z + h v,    v <- v + h/2 grad log p(z),

    accepted with probability min(1, exp(H(z, v) - H(z', v'))), H = |v|^2 / 2 - log p(z). With one
    leapfrog step and no jitter this is `MALA` of step size h. A move costs `leapfrogs` gradients.

    Every chain draws its own h for every move, so that no trajectory length can be a period of the
    target: uniformly from [(1 - jitter) step_size, step_size].

    Args:
        step_size: the largest h; the first one if it is adapted.
        steps: T, moves.
        leapfrogs: leapfrog steps in a move.
        jitter: how far h is shortened at random, from 0 (not at all) to 1.
        target_acceptance: adapt log step_size towards this mean acceptance (0.65 is optimal in high
            dimension, more is safer); None keeps it fixed.
        scale: preconditioner; see `Kernel`.

    Example:
        >>> kernel = HMC(0.5, steps=4, target_acceptance=None)
        >>> state, info = kernel.run(torch.zeros(3, 2), lambda z: -z.pow(2).sum(1))
        >>> info.gradient_calls == 3 * (1 + 4 * 8), int(info.divergences)
        (True, 0)
    """

    leapfrogs: int = 8
    jitter: float = 0.5
    target_acceptance: float | None = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_target_acceptance(self.target_acceptance)
        if self.leapfrogs < 1:
            raise BadInput(f"leapfrogs must be at least 1, got {self.leapfrogs}")
        if not 0 <= self.jitter <= 1:
            raise BadInput(f"jitter must lie in [0, 1], got {self.jitter}")

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, s = state.z, state.step_size
        assert s is not None
        value, grad, calls = evaluate(state, log_prob)
        v = normal_like(z, generator)
        u = uniform_like(z[:, :1], generator)
        h = s * (1 - self.jitter * u)
        kinetic = v.square().sum(1) / 2
        new, new_value, new_grad = z, value, grad
        force = self.pull(grad)
        for _ in range(self.leapfrogs):
            v = v + h / 2 * force
            new = new + self.push(h * v)
            new_value, new_grad = value_and_grad(log_prob, new)
            force = self.pull(new_grad)
            v = v + h / 2 * force
        calls += self.leapfrogs * len(z)

        log_ratio = new_value - v.square().sum(1) / 2 - (value - kinetic)
        outside = new_value == -math.inf
        divergent = ~outside & ~(log_ratio.isfinite() & (log_ratio > -_DIVERGENT))
        log_ratio = torch.where(outside | ~log_ratio.isfinite(), -math.inf, log_ratio)
        here = state._replace(log_prob=value, grad=grad)
        there = State(new, new_value, new_grad)
        moved, acceptance = self.adaptive_metropolis(
            here, there, log_ratio, self.target_acceptance, generator
        )
        return moved, StepInfo(value, calls, acceptance, divergent=divergent)
