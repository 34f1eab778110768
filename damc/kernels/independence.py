"""Jumps between modes: a local kernel that now and then proposes a point from far away.

Langevin moves explore one mode of a density well and hardly ever reach another, so chains keep the
share of each mode that their starts gave them. Where a rough global approximation of the target can
be sampled and evaluated (the prior of a Bayesian model is one), independence proposals from it
carry chains between modes with the right probabilities (Hastings 1970; Tierney 1994).
"""

from __future__ import annotations

__all__ = ["Gaussian", "Independence", "Proposal"]

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.errors import BadInput
from damc.kernels.base import Kernel, State, StepInfo, evaluate
from damc.kernels.mala import MALA


class Proposal(Protocol):
    """A distribution that can be drawn from and evaluated, up to a constant."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density up to a constant, ``(B, d)`` to ``(B,)``."""


class Gaussian:
    """A Gaussian in `dim` dimensions, a proposal when nothing better is known.

    Args:
        dim: d.
        scale: standard deviation, one number or one for each dimension, ``(d,)``.
        mean: one number or one for each dimension, ``(d,)``; 0 by default.
        covariance: ``(d, d)``, instead of `scale`.

    Example:
        >>> wide = Gaussian(2, scale=torch.tensor([1.0, 4.0]), mean=torch.tensor([0.0, 3.0]))
        >>> wide.log_prob(torch.zeros(1, 2))
        tensor([-3.5054])
    """

    def __init__(
        self,
        dim: int,
        scale: float | Tensor = 1.0,
        mean: float | Tensor = 0.0,
        *,
        covariance: Tensor | None = None,
    ) -> None:
        if not isinstance(dim, int) or dim < 1:
            raise BadInput(f"dim must be a positive whole number, got {dim!r}")
        self.dim = dim
        self.mean = _vector("mean", mean, dim)
        if not bool(self.mean.isfinite().all()):
            raise BadInput(f"mean must be finite, got {mean}")
        if covariance is None:
            sds = _vector("scale", scale, dim)
            if not bool(((sds > 0) & sds.isfinite()).all()):
                raise BadInput(f"scale must be positive and finite, got {scale}")
            self.factor = torch.diag(sds)
            return
        if isinstance(scale, Tensor) or scale != 1.0:
            raise BadInput("scale and covariance say the same thing: give one of them")
        covariance = torch.as_tensor(covariance)
        if covariance.shape != (dim, dim):
            raise BadInput(
                f"covariance must have shape ({dim}, {dim}), got {tuple(covariance.shape)}"
            )
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if bool(failed) or not torch.allclose(covariance, covariance.T):
            raise BadInput("covariance must be symmetric and positive definite")
        self.factor = factor

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""
        device = self.mean.device if generator is None else generator.device
        w = torch.randn(n, self.dim, generator=generator, dtype=self.factor.dtype, device=device)
        return self.mean.to(device) + w @ self.factor.T.to(device)

    def log_prob(self, z: Tensor) -> Tensor:
        """Normalized log-density, ``(B, d)`` to ``(B,)``."""
        factor, mean = self.factor.to(z), self.mean.to(z)
        w: Tensor = torch.linalg.solve_triangular(factor, (z - mean).T, upper=False)
        log_volume = factor.diagonal().log().sum() + self.dim / 2 * math.log(2 * math.pi)
        return w.square().sum(0) / -2 - log_volume


@dataclass(frozen=True)
class Independence(Kernel):
    """Moves of a local kernel, then a proposal from afar that Metropolis accepts or refuses:

        accept z' ~ g with probability min(1, p(z') g(z) / (p(z) g(z'))).

    The jump leaves p exactly invariant, so the pair has the stationary distribution of the local
    kernel (none but p itself for `MALA`). With one local move a step costs two gradients instead of
    one. `info.acceptance` is that of the jumps, `info.local_acceptance` that of the local moves.

    Args:
        steps: T, rounds of local moves and a proposal.
        proposal: g, for example the prior of a Bayesian model.
        local: the local kernel; every round makes its `steps` moves of its `step_size`.

    Example:
        >>> kernel = Independence(steps=5, proposal=Gaussian(2, 3.0), local=MALA(0.5, steps=1))
        >>> state, info = kernel.run(torch.zeros(3, 2), lambda z: -z.pow(2).sum(1))
        >>> info.gradient_calls
        33
    """

    step_size: float | Tensor = field(init=False, repr=False, default=0.0)  # the local kernel's
    proposal: Proposal | None = None
    local: Kernel = field(default_factory=lambda: MALA(steps=1))

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", self.local.step_size)
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
        left, calls = None, 0
        for _ in range(self.local.steps):
            state, move = self.local.step(state, log_prob, generator)
            left = move.log_prob if left is None else left
            calls += move.gradient_calls
        assert left is not None
        z = state.z
        far = self.proposal.sample(len(z), generator).to(z)
        if far.shape != z.shape:
            raise BadInput(f"the proposal drew {tuple(far.shape)} for chains {tuple(z.shape)}")
        weight, far_weight = self.proposal.log_prob(z), self.proposal.log_prob(far)
        value, grad, spent = evaluate(state, log_prob)
        far_value, far_grad = value_and_grad(log_prob, far)
        calls += spent + len(z)
        log_ratio = (far_value - far_weight) - (value - weight)
        divergent = ~(log_ratio.isfinite() | (log_ratio == -math.inf))
        state, acceptance = self.local.metropolis(
            state._replace(log_prob=value, grad=grad),
            State(far, far_value, far_grad),
            torch.where(divergent, -math.inf, log_ratio),
            generator,
        )
        return state, StepInfo(left, calls, acceptance, move.acceptance, divergent)


def _vector(name: str, value: float | Tensor, dim: int) -> Tensor:
    tensor = torch.as_tensor(value)
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    if tensor.ndim > 1 or (tensor.ndim == 1 and len(tensor) != dim):
        raise BadInput(
            f"{name} must be one number or one for each of {dim} dimensions, "
            f"got shape {tuple(tensor.shape)}"
        )
    return tensor.expand(dim)
