"""What every MCMC kernel shares: state in, (state, info) out, and `run`, which owns the loop.

The convention everywhere is the paper's equation 3 with step size s,

    z' = z + (s^2 / 2) grad log p(z) + s w,    w ~ N(0, I).

A kernel moves many chains in one batch. With a `scale` L, a factor of a covariance, every kernel
makes its moves in the coordinates v of z = L v, where a Gaussian of covariance L L^T is round:
gradients are pulled back by L^T, moves are pushed forward by L, and no equation changes.
"""

from __future__ import annotations

__all__ = [
    "Info",
    "Kernel",
    "State",
    "StepInfo",
    "adapted",
    "check_target_acceptance",
    "evaluate",
]

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from damc.density import LogProb, Target, value_and_grad
from damc.errors import BadInput, Diverged
from damc.fast.frozen import frozen
from damc.randomness import uniform_like


class State(NamedTuple):
    """Where the chains are, and what is already known there.

    `log_prob` and `grad` are None where nothing has needed them yet: an unadjusted chain of
    T moves costs T gradients, and its end point is evaluated only if the chain goes on.
    """

    z: Tensor  # points, (B, d)
    log_prob: Tensor | None = None  # (B,)
    grad: Tensor | None = None  # (B, d)
    step_size: float | Tensor | None = None  # one for all, or broadcast to (B, d); adapted
    moves: int = 0  # moves made so far
    velocity: Tensor | None = None  # (B, d); of `damc.kernels.underdamped.Underdamped`


class StepInfo(NamedTuple):
    """What happened in one move of every chain."""

    log_prob: Tensor  # at the points it left from, (B,)
    gradient_calls: int  # gradients of the log-density computed, counted for each chain
    acceptance: Tensor | None = None  # probability, (B,); None if no move is ever refused
    local_acceptance: Tensor | None = None  # of `Independence`'s local kernel, (B,)
    divergent: Tensor | None = None  # proposals refused because they are not finite, bool, (B,)


class Info(NamedTuple):
    """What happened in a run, on average over chains."""

    acceptance: Tensor  # probability of acceptance, ()
    displacement: Tensor  # |z_T - z_0|, ()
    log_prob: Tensor  # at the points that each of the T moves left from, (T,)
    gradient_calls: int  # gradients of the log-density computed, counted for each chain
    trace: Tensor | None = None  # every `thin`-th state of a run, (T // thin, B, d)
    local_acceptance: Tensor | None = None  # of `Independence`'s local kernel, ()
    divergences: Tensor | None = None  # proposals refused because they are not finite, counted, ()


def evaluate(state: State, log_prob: LogProb) -> tuple[Tensor, Tensor, int]:
    """Log-density and gradient where the chains are, computed unless the state knows them.

    Returns:
        The values ``(B,)``, the gradients ``(B, d)``, and how many gradients that took.
    """
    if state.log_prob is not None and state.grad is not None:
        return state.log_prob, state.grad, 0
    return *value_and_grad(log_prob, state.z), len(state.z)


def adapted(
    step_size: float | Tensor, acceptance: Tensor, target: float | None, moves: int
) -> float | Tensor:
    """The step size moved towards a mean acceptance, by stochastic approximation:

        log s <- log s + (t + 1)^-0.6 (mean acceptance - a) / min(a, 1 - a)    after move t,

    a being the target; without one the size stays. The gains vanish, so the size settles, and a
    size that is far too small still grows e-fold in the first moves however near to 1 the target.
    """
    if target is None:
        return step_size
    gain = (moves + 1) ** -0.6 / min(target, 1 - target)
    return step_size * torch.exp(gain * (acceptance.mean() - target))


def check_target_acceptance(target: float | None) -> None:
    """Refuses what is no probability."""
    if target is not None and not 0 < target < 1:
        raise BadInput(f"target_acceptance must lie between 0 and 1, got {target}")


@dataclass(frozen=True)
class Kernel:
    """A Markov kernel that runs `steps` moves of size `step_size`; subclasses write `step`.

    Args:
        step_size: s, one number, one for each chain, ``(B,)``, or one for each dimension (of each
            chain), ``(1, d)`` or ``(B, d)``.
        steps: how many moves `run` makes.
        scale: preconditioner, a standard deviation for each dimension, ``(d,)``, or a factor L of a
            covariance L L^T, ``(d, d)``; None is the identity.
    """

    step_size: float | Tensor = 0.1
    steps: int = 30
    scale: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        s = self.step_size
        sizes = s.flatten().tolist() if isinstance(s, Tensor) else [s]
        flat = not isinstance(s, Tensor) or s.ndim <= 2
        if not flat or not all(0 < size < math.inf for size in sizes):
            raise BadInput(
                "step_size must be a positive number, or one for each chain or dimension, "
                f"got {self.step_size}"
            )
        if max(sizes, default=0) > 1e18:  # its square is no number of 32 bits
            raise BadInput(f"step_size must be at most 1e18, got {self.step_size}")
        if self.steps < 1:
            raise BadInput(f"steps must be at least 1, got {self.steps}")
        scale = self.scale
        if scale is not None and not (
            0 < scale.ndim <= 2
            and scale.shape[0] == scale.shape[-1]
            and bool(scale.isfinite().all())
            and bool((scale if scale.ndim == 1 else scale.diagonal()).all())
        ):
            raise BadInput(
                "scale must be a standard deviation for each dimension, (d,), or a factor of a "
                f"covariance, (d, d), finite and not 0, got shape {tuple(scale.shape)}"
            )

    def init(self, z: Tensor) -> State:
        """The state of chains that start at z, ``(B, d)``; nothing is evaluated yet."""
        if z.ndim != 2 or not z.is_floating_point():
            raise BadInput(
                f"chains start at points (B, d) of floating type, got {z.dtype} {tuple(z.shape)}"
            )
        if self.scale is not None and len(self.scale) != z.shape[1]:
            raise BadInput(f"scale has {len(self.scale)} dimensions for points {tuple(z.shape)}")
        s = self.step_size
        if not isinstance(s, Tensor):
            return State(z.detach(), step_size=float(s))
        s = s.to(z)
        s = s[:, None] if s.ndim == 1 else s
        if s.ndim and (s.shape[0] not in (1, len(z)) or s.shape[1] not in (1, z.shape[1])):
            raise BadInput(
                f"got {s.shape[0]} step sizes for {len(z)} chains; give one for each chain, (B,), "
                "or for each dimension, (1, d) or (B, d)"
            )
        return State(z.detach(), step_size=s)

    def pull(self, grad: Tensor) -> Tensor:
        """L^T grad: gradients ``(B, d)`` in the coordinates in which moves are made."""
        if self.scale is None:
            return grad
        return grad * self.scale if self.scale.ndim == 1 else grad @ self.scale

    def push(self, move: Tensor) -> Tensor:
        """L v: moves ``(B, d)`` made in those coordinates, in z's own."""
        if self.scale is None:
            return move
        return move * self.scale if self.scale.ndim == 1 else move @ self.scale.T

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        """One move of every chain."""
        raise NotImplementedError

    def relocate(self, state: State, where: Tensor, new: State) -> State:
        """The state after something else than this kernel put some of its chains elsewhere.

        Args:
            state: of all chains, with `log_prob` and `grad`.
            where: which chains, bool, ``(B,)``.
            new: where those are then, with `log_prob` and `grad`.
        """
        assert state.log_prob is not None and new.log_prob is not None
        assert state.grad is not None and new.grad is not None
        rows = where[:, None]
        return state._replace(
            z=torch.where(rows, new.z, state.z),
            log_prob=torch.where(where, new.log_prob, state.log_prob),
            grad=torch.where(rows, new.grad, state.grad),
        )

    def metropolis(
        self,
        state: State,
        proposal: State,
        log_ratio: Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[State, Tensor]:
        """Each chain takes its proposal with probability min(1, exp(log_ratio)), or stays.

        Args:
            state: of all chains, with `log_prob` and `grad`.
            proposal: where each could go, with `log_prob` and `grad`.
            log_ratio: log of the Metropolis-Hastings ratio, ``(B,)``; -inf refuses.

        Returns:
            The state, and the probabilities of acceptance, ``(B,)``.
        """
        acceptance = log_ratio.clamp(max=0).exp()
        accept = uniform_like(acceptance, generator) < acceptance
        return self.relocate(state, accept, proposal), acceptance

    def adaptive_metropolis(
        self,
        state: State,
        proposal: State,
        log_ratio: Tensor,
        target: float | None,
        generator: torch.Generator | None = None,
    ) -> tuple[State, Tensor]:
        """`metropolis`, then the step size is `adapted` to a mean acceptance and the move counted.

        Args:
            target: the mean acceptance; None leaves the step size as it is.
        """
        assert state.step_size is not None
        new, acceptance = self.metropolis(state, proposal, log_ratio, generator)
        s = adapted(state.step_size, acceptance, target, state.moves)
        return new._replace(step_size=s, moves=state.moves + 1), acceptance

    def run(
        self,
        z: Tensor | State,
        log_prob: Target,
        generator: torch.Generator | None = None,
        *,
        steps: int | None = None,
        thin: int | None = None,
    ) -> tuple[State, Info]:
        """Moves every chain `steps` times; with ``steps = 0`` the chains stay where they are.

        Args:
            z: where the chains start, ``(B, d)``, or the state an earlier run ended in
                (an adapted step size goes on from there).
            log_prob: the target; see `damc.density`.
            generator: source of all randomness.
            steps: the kernel's own `steps` by default.
            thin: keep every `thin`-th state in ``info.trace``; none by default, so that
                memory does not grow with the number of moves.

        Raises:
            Diverged: if a chain left the finite numbers, or all proposals did; names the quantity
                and the move.
        """
        steps = self.steps if steps is None else steps
        if steps < 0:
            raise BadInput(f"steps must not be negative, got {steps}")
        target = frozen(log_prob)
        state = z if isinstance(z, State) else self.init(z)
        start, calls = state.z, 0
        # Allocated once: small results that stay behind after every move would pin the large
        # blocks freed around them, and a long run's memory would grow.
        values, acceptance = start.new_empty(steps), start.new_ones(steps)
        local = acceptance.clone()
        divergences = torch.zeros((), dtype=torch.long, device=start.device)
        trace = start.new_empty(steps // thin, *start.shape) if thin else None
        for t in range(steps):
            state, move = self.step(state, target, generator)
            calls += move.gradient_calls
            values[t] = move.log_prob.mean()
            if move.acceptance is not None:
                acceptance[t] = move.acceptance.mean()
            if move.local_acceptance is not None:
                local[t] = move.local_acceptance.mean()
            if move.divergent is not None:
                divergences += move.divergent.sum()
            if trace is not None and thin and (t + 1) % thin == 0:
                trace[t // thin] = state.z
        info = Info(
            acceptance=acceptance.mean() if steps else start.new_ones(()),
            displacement=(state.z - start).norm(dim=1).mean(),
            log_prob=values,
            gradient_calls=calls,
            trace=trace,
            local_acceptance=local.mean() if steps else start.new_ones(()),
            divergences=divergences,
        )
        self._check(state, info)
        return state, info

    def _check(self, state: State, info: Info) -> None:
        # One look at the end instead of one in every move: a value that is not finite stays so
        # in the averages, and asking a GPU after every move would stall it.
        finite = torch.isfinite(info.displacement + info.log_prob.sum() + info.acceptance)
        proposals = len(info.log_prob) * len(state.z)
        assert info.divergences is not None
        if bool(finite & ((info.divergences < proposals) | (proposals == 0))):
            return
        if bool(finite):
            raise Diverged(
                f"no proposal in {len(info.log_prob)} moves had a finite acceptance probability: "
                "the log-density or its gradient is NaN all around the points where chains start, "
                f"or step size {float(torch.as_tensor(state.step_size).max()):g} is too large"
            )
        bad = (~torch.isfinite(info.log_prob)).nonzero()
        move = int(bad[0]) if len(bad) else len(info.log_prob)
        if move == 0:
            raise Diverged("the log-density is not finite where the chains start")
        what = "the log-density" if len(bad) else "the position or an acceptance probability"
        raise Diverged(
            f"{what} stopped being finite after {move} of {len(info.log_prob)} moves with step "
            f"size {float(torch.as_tensor(state.step_size).max()):g}; try a smaller step size"
        )
