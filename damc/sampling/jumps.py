"""Proposals from a mixture of Gaussians that fits the draws themselves.

Local moves never change the share of a mode that they cannot leave, and a preconditioner of all
modes fits none of them. A mixture fitted to the draws proposes points of every mode, in its own
shape; Metropolis accepts them with p's and the mixture's density, so shares are set right and
draws become independent of where they were. Where proposals are accepted often, draws of the
mixture and draws of p together also tell the evidence (`bridge`).
"""

from __future__ import annotations

__all__ = ["MOST", "Jumps", "MixtureProposal", "bridge", "jump", "jumps_for", "shapes"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.diffusion.mixture import BlockMixture
from damc.diffusion.standardize import Standardize
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover, possible
from damc.kernels.straight import Straight
from damc.randomness import uniform_like

MOST = 20
"""Dimensions up to which proposals of a mixture are accepted often enough."""
_COMPONENTS = 32
_FITTED = 4000  # points that it is fitted to
_WIDE = 1.2  # the components' standard deviations are larger by this factor
_MARGINAL = 8  # components of each marginal
_FULL = 64  # dimensions up to which a mixture of all coordinates is tried
_WORTH = 0.05  # acceptance from which on jumps are made
_FORGOTTEN = 5.0  # accepted jumps of a particle, after which it has forgotten where it was
_JUMPS = 40  # at most, for that
_FITS = 2  # the first to particles as they were annealed
_BRIDGED = 2048  # draws of the mixture for each island


def shapes(dim: int) -> list[tuple[int, int]]:
    """Blocks and components of mixtures that are worth a try: a product of marginals, and an
    ordinary mixture unless that has too many parameters."""
    full = [(1, 64 if dim <= 4 else 32 if dim <= 12 else 16)] if 1 < dim <= _FULL else []
    return [(dim, _MARGINAL), *full]


class MixtureProposal:
    """A mixture of Gaussians around points, somewhat wider than they are.

    Args:
        z: points, ``(n, d)``, float64.
        generator: source of all randomness.
        kinds: blocks and components of the mixtures that are tried in turn, until one is no
            likelier than the one before at points that it was not fitted to.
    """

    def __init__(
        self,
        z: Tensor,
        generator: torch.Generator | None = None,
        kinds: list[tuple[int, int]] | None = None,
    ) -> None:
        d = z.shape[1]
        kinds = kinds or [(1, _COMPONENTS)]
        some = torch.randperm(len(z), generator=generator, device=z.device)
        held = some[: min(_FITTED, len(z) // 5)] if len(kinds) > 1 else some[:0]
        fitted = z[some[len(held) :][:_FITTED]]
        best = -math.inf
        for blocks, components in kinds:
            scale = Standardize(d).to(z)
            scale.fit(z)
            if blocks == d:  # coordinates that are independent must not be mixed
                scale.factor.copy_(torch.diag(z.std(0)))
            mixture = BlockMixture(d, blocks, components).to(z)
            mixture.fit(scale(fitted), generator)
            level = 0.0
            if len(held):
                level = float(mixture.log_prob(scale(z[held])).mean() - scale.log_scale())
            if level <= best:
                break
            best, self.scale, self.mixture = level, scale, mixture
        self.mixture.variances.mul_(_WIDE**2 if self.mixture.size > 1 else 1.0)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""
        return self.scale.inverse(self.mixture.sample(n, generator))

    def log_prob(self, z: Tensor) -> Tensor:
        """Normalized log-density, ``(B, d)`` to ``(B,)``."""
        parts = [self.mixture.log_prob(self.scale(part)) for part in torch.split(z, 4096)]
        return torch.cat(parts) - self.scale.log_scale()


def jump(
    state: State,
    target: LogProb,
    proposal: MixtureProposal,
    generator: torch.Generator | None,
    jumps: int = 1,
) -> tuple[State, float]:
    """Proposals for every point, and the mean acceptance of the last one: independence Metropolis.

    accept z' ~ g with probability min(1, p(z') g(z) / (p(z) g(z')))
    """
    log_g, acceptance = proposal.log_prob(state.z), torch.zeros(())
    for _ in range(jumps):
        assert state.log_prob is not None and state.grad is not None
        far = proposal.sample(len(state.z), generator)
        value, grad = value_and_grad(target, far)
        far_log_g = proposal.log_prob(far)
        log_ratio = value - far_log_g - state.log_prob + log_g
        log_ratio = torch.where(log_ratio.isnan(), -math.inf, log_ratio)
        acceptance = log_ratio.clamp(max=0).exp()
        accept = uniform_like(acceptance, generator) < acceptance
        state = HMC(1.0).relocate(state, accept, State(far, value, grad))
        log_g = torch.where(accept, far_log_g, log_g)
    return state, float(acceptance.mean())


@dataclass
class Jumps:
    """Jumps of particles, in the coordinates in which their kernel moves them.

    Attributes:
        proposal: of points in those coordinates.
        straight: leads from there to z; None if they are z itself.
        acceptance: of the last jump.
    """

    proposal: MixtureProposal
    straight: Straight | None
    acceptance: float = 0.0

    def __call__(
        self,
        state: State,
        target: LogProb,
        budget: Budget,
        generator: torch.Generator | None,
        jumps: int = 1,
    ) -> State:
        """The particles after so many jumps."""
        if self.straight is not None:
            state, target = self.straight.to_v(state), self.straight.target(target)
        state, self.acceptance = jump(state, target, self.proposal, generator, jumps)
        budget.spend(jumps * len(state.z))
        return state if self.straight is None else self.straight.to_z(state)


def jumps_for(
    state: State,
    mover: Mover,
    target: LogProb,
    budget: Budget,
    generator: torch.Generator | None = None,
) -> tuple[Jumps, State] | None:
    """Jumps fitted to particles, and the particles after so many that each has forgotten its start.

    The proposal is fitted once more to particles that have jumped already, since jumps set right
    what annealing left wrong. None if proposals are accepted too rarely to be worth it.
    """
    n, d = state.z.shape
    if n < 10 * d or n < 100:
        return None
    for _ in range(_FITS):
        straight = mover.straight
        points = state.z if straight is None else straight.inverse(state.z)
        jumps = Jumps(MixtureProposal(points, generator, shapes(d)), straight)
        accepted = 0.0
        for _ in range(_JUMPS):
            state = jumps(state, target, budget, generator)
            accepted += jumps.acceptance
            if jumps.acceptance < _WORTH or budget.left <= 0:
                return None
            if accepted >= _FORGOTTEN:
                break
            # What no jump leaves, since the mixture is too thin there, moves do.
            state, _ = mover.move(state, target, (1, 1), budget, generator, adapt=False)
    return jumps, state


def bridge(
    jumps: Jumps,
    target: LogProb,
    states: list[State],
    islands: int,
    budget: Budget,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log Z of each island ``(R,)``, from its particles and as many draws of the mixture g.

    The r that solves

        r = mean_g[ w / (a w + b r) ] / mean_p[ 1 / (a w + b r) ],    w = p(z) / g(z),

    a and b being the shares of both kinds of draws (Meng and Wong 1996). Unlike the mean weight it
    does not miss a mode that the mixture misses but particles have.
    """
    g, straight = jumps.proposal, jumps.straight
    if straight is not None:
        states, target = [straight.to_v(state) for state in states], straight.target(target)
    z = g.sample(islands * _BRIDGED, generator)
    drawn = (possible(target, z)[0] - g.log_prob(z)).view(islands, -1)
    budget.spend(len(z))
    values = [s.log_prob - g.log_prob(s.z) for s in states]  # type: ignore[operator]
    held = torch.stack(values).view(len(states), islands, -1).transpose(0, 1).flatten(1)
    # Sweeps repeat themselves in part, so particles count as no more than the draws beside them.
    a = min(held.shape[1], _BRIDGED) / (min(held.shape[1], _BRIDGED) + _BRIDGED)
    log_a, log_b = math.log(a), math.log(1 - a)
    log_r = drawn.logsumexp(1) - math.log(drawn.shape[1])
    for _ in range(100):
        r = log_r[:, None] + log_b
        above = (drawn - torch.logaddexp(log_a + drawn, r)).logsumexp(1) - math.log(drawn.shape[1])
        below = (-torch.logaddexp(log_a + held, r)).logsumexp(1) - math.log(held.shape[1])
        last, log_r = log_r, above - below
        if float((log_r - last).abs().max()) < 1e-6:
            break
    return log_r
