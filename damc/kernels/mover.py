"""A kernel that adapts to the particles it moves, within a budget."""

from __future__ import annotations

__all__ = ["Budget", "Mover", "Possible", "covariance_factor", "possible"]

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.kernels.base import State, adapted
from damc.kernels.funnels import LocationScale
from damc.kernels.hmc import HMC
from damc.kernels.straight import Straight


@dataclass
class Budget:
    """What may be spent, and what has been.

    Args:
        gradients: gradients of the log-density, counted for each point.
        seconds: time from now, of computing: where other work keeps the processor busy, the clock
            may show more. So what is found does not depend on that work.
        spent: gradients so far.
        watch: told of what was spent, gradients at a time.
        clock: count all time instead, as is right where a device computes and the processor waits.
    """

    gradients: float = math.inf
    seconds: float = math.inf
    spent: int = 0
    watch: Callable[[int], object] | None = None
    clock: bool = False
    _start: float = field(default_factory=time.monotonic)
    _computed: float = field(default_factory=time.process_time)

    def spend(self, gradients: int) -> None:
        """Counts what was spent."""
        self.spent += gradients
        if self.watch is not None:
            self.watch(gradients)

    @property
    def elapsed(self) -> float:
        """Seconds since the start; of several threads that compute at once, only one counts."""
        passed = time.monotonic() - self._start
        return passed if self.clock else min(passed, time.process_time() - self._computed)

    @property
    def left(self) -> float:
        """The share that is left, of whichever runs out first."""
        return min(1 - self.spent / self.gradients, 1 - self.elapsed / self.seconds)

    @property
    def hurried(self) -> bool:
        """Whether so little time is left that work is cut short."""
        return self.elapsed > 0.85 * self.seconds


@dataclass
class Mover:
    """A kernel that adapts to the particles it moves.

    Its preconditioner is a factor of the particles' covariance. A share of the moves is made with
    much smaller steps, at random: where a target is far narrower than on the whole, as in the neck
    of a funnel, no other move would be accepted.
    """

    kernel: HMC
    step_size: Tensor | float = 0.5
    fine: float = 0.2  # share of the moves with smaller steps
    finest: float = 0.02  # the smallest, as a share of the step size
    straight: Straight | None = None  # coordinates in which moves are made, if not z itself

    def adapt(self, z: Tensor) -> None:
        """Takes the scale from particles ``(n, d)``; keeps the one it has if they are too few."""
        if len(z) < 5 * z.shape[1] and self.kernel.scale is not None:
            return
        self.straight = LocationScale.fit(z)
        factor = covariance_factor(z if self.straight is None else self.straight.inverse(z))
        if factor is not None:
            self.kernel = HMC(
                1.0, leapfrogs=self.kernel.leapfrogs, target_acceptance=None, scale=factor
            )

    def move(
        self,
        state: State,
        target: LogProb,
        moves: tuple[int, int],
        budget: Budget,
        generator: torch.Generator | None = None,
        *,
        adapt: bool = True,
    ) -> tuple[State, float]:
        """Moves until particles get no further: their mean squared distance stops to grow."""
        if adapt:
            self.adapt(state.z)
        if self.straight is not None:
            state, target = self.straight.to_v(state), self.straight.target(target)
        start, reached, accepted, done = state.z, 0.0, [], 0
        least, most = moves
        for done in range(1, most + 1):
            state, acceptance = self.step(state, target, generator, done)
            accepted.append(acceptance)
            budget.spend(self.kernel.leapfrogs * len(start))
            away = float(self.whiten(state.z - start).square().mean())
            if (done >= least and away < 1.1 * reached) or budget.left <= 0:
                break
            reached = away
        if self.straight is not None:
            state = self.straight.to_z(state)
        return state, float(torch.stack(accepted).mean())

    def step(
        self, state: State, target: LogProb, generator: torch.Generator | None, moves: int = 1
    ) -> tuple[State, Tensor]:
        """One move of every particle, and the mean acceptance of those that made large steps."""
        z = state.z
        u = (
            torch.empty_like(z[:, :2]).uniform_(generator=generator)
            if z.shape[1] > 1
            else (
                torch.empty(len(z), 2, dtype=z.dtype, device=z.device).uniform_(generator=generator)
            )
        )
        small = u[:, 0] < self.fine
        share = torch.where(small, torch.exp(math.log(self.finest) * u[:, 1]), 1.0)
        state = state._replace(step_size=(self.step_size * share)[:, None])
        state, info = self.kernel.step(state, target, generator)
        assert info.acceptance is not None
        large = (info.acceptance * ~small).sum() / (~small).sum().clamp(min=1)
        # Gains as if some moves had been made before: the size was adapted at the temperature
        # before this one, and must not jump.
        self.step_size = adapted(self.step_size, large, 0.75, moves + 1)
        return state, large

    def whiten(self, move: Tensor) -> Tensor:
        """Moves in the coordinates in which the particles are round."""
        scale = self.kernel.scale
        if scale is None:
            return move
        if scale.ndim == 1:
            return move / scale
        return torch.linalg.solve_triangular(scale, move.T, upper=False).T  # type: ignore[no-any-return]


def covariance_factor(z: Tensor) -> Tensor | None:
    """A Cholesky factor of the covariance of points ``(n, d)``, or the standard deviations ``(d,)``
    if there are too few points for it; None if they do not spread in every direction."""
    n, d = z.shape
    sds = z.std(0)
    if not bool((sds > 0).all() and sds.isfinite().all()):
        return None
    if n < 5 * d:
        return sds
    # In units of the standard deviations, so that a tiny one is not lost beside a large one.
    factor, failed = torch.linalg.cholesky_ex((z / sds).T.cov().view(d, d))
    if bool(failed) or not bool(factor.isfinite().all()):
        return sds
    scaled: Tensor = sds[:, None] * factor
    return scaled


@dataclass(frozen=True)
class Possible:
    """A target whose impossible points have -inf and no gradient; see `possible`."""

    target: LogProb

    def __call__(self, z: Tensor) -> Tensor:
        return self.value_and_grad(z)[0]

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        return possible(self.target, z)


def possible(target: LogProb, z: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of the target; -inf and 0 where it is not finite.

    Any deterministic force keeps leapfrog steps reversible, so a gradient that is not finite may be
    replaced without harm to the distribution of the chains.
    """
    value, grad = value_and_grad(target, z)
    value = torch.where(value.isfinite(), value, -math.inf)
    usable = (value > -math.inf)[:, None] & grad.isfinite()
    return value, torch.where(usable, grad, 0.0)
