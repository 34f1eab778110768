"""Jumps between modes: a local kernel that now and then proposes a point from far away.

Langevin moves explore one mode of a density well and hardly ever reach another, so chains keep the
share of each mode that their starts gave them. Where a rough global approximation of the target can
be sampled and evaluated (the prior of a Bayesian model is one), independence proposals from it
carry chains between modes with the right probabilities (Hastings 1970; Tierney 1994).
"""

from __future__ import annotations

__all__ = ["Gaussian", "Independence", "Proposal"]

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.errors import BadInput
from damc.kernels.base import Kernel, State, StepInfo, evaluate
from damc.kernels.langevin import Langevin


class Proposal(Protocol):
    """A distribution that can be drawn from and evaluated, up to a constant."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density up to a constant, ``(B, d)`` to ``(B,)``."""


@dataclass(frozen=True)
class Gaussian:
    """N(0, scale^2 I) in `dim` dimensions, a proposal when nothing better is known."""

    dim: int
    scale: float = 1.0

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""
        device = None if generator is None else generator.device
        return torch.randn(n, self.dim, generator=generator, device=device) * self.scale

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density up to a constant, ``(B, d)`` to ``(B,)``."""
        return z.square().sum(1) / (-2 * self.scale**2)


@dataclass(frozen=True)
class Independence(Kernel):
    """A move of a local kernel, then a proposal from afar that Metropolis accepts or refuses:

        accept z' ~ g with probability min(1, p(z') g(z) / (p(z) g(z'))).

    The jump leaves p exactly invariant, so the pair has the stationary law of the local kernel
    (none but p itself for `MALA`). A move costs two gradients instead of one.

    Args:
        step_size: of the local kernel.
        steps: T, pairs of a local move and a proposal.
        proposal: g, for example the prior of a Bayesian model.
        local: the local kernel; its own step_size and steps are not used.
    """

    proposal: Proposal | None = None
    local: Kernel = field(default_factory=Langevin)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.proposal is None:
            raise BadInput(
                "Independence needs a proposal with sample(n, generator) and log_prob(z)"
            )
        if isinstance(self.proposal, torch.distributions.Distribution):
            raise BadInput(
                "a torch.distributions object draws from no generator: give a proposal with "
                "sample(n, generator) and log_prob(z), such as damc.Gaussian"
            )

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        assert self.proposal is not None
        state, move = self.local.step(state, log_prob, generator)
        z, calls = state.z, move.gradient_calls
        far = self.proposal.sample(len(z), generator).to(z)
        if far.shape != z.shape:
            raise BadInput(f"the proposal drew {tuple(far.shape)} for chains {tuple(z.shape)}")
        weight, far_weight = self.proposal.log_prob(z), self.proposal.log_prob(far)
        value, grad, spent = evaluate(state, log_prob)
        far_value, far_grad = value_and_grad(log_prob, far)
        calls += spent + len(z)
        log_ratio = (far_value - far_weight) - (value - weight)
        accept = torch.empty_like(value).uniform_(generator=generator).log() < log_ratio
        moved = torch.where(accept[:, None], far, z)
        state = state._replace(
            z=moved,
            log_prob=torch.where(accept, far_value, value),
            grad=torch.where(accept[:, None], far_grad, grad),
        )
        return state, move._replace(gradient_calls=calls)
