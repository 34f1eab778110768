"""Annealed sequential Monte Carlo: particles carried from a reference to any target, and evidence.

Particles of a normalized reference r follow the path of densities

    p_beta(z) ~ r(z)^(1 - beta) p(z)^beta,    0 = beta_0 < beta_1 < ... < 1,

reweighted from one temperature to the next, resampled, and moved by a kernel that leaves p_beta
invariant (Neal 2001; Del Moral, Doucet and Jasra 2006). The product of the mean weights estimates
the evidence Z, the integral of p, without bias. Nothing is tuned by the user: the temperatures keep
the effective sample size of each reweighting, the kernel's preconditioner is the particles' own
covariance, its step size follows the acceptance, and moves end when they get no further.

The particles live on islands that never exchange any, so that what differs between islands is the
error of the whole procedure.
"""

from __future__ import annotations

__all__ = ["Annealed", "anneal", "joined", "log_evidence", "resample"]

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from damc.density import LogProb, Target, value_and_grad
from damc.errors import BadInput, Diverged
from damc.fast.frozen import frozen
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.independence import Proposal
from damc.kernels.mover import Budget, Mover, possible
from damc.kernels.pilot import pilot

ISLANDS = 8
_LEAST_STEP = 1e-14  # of beta; below it the target is as good as disjoint from the reference


@dataclass(frozen=True)
class Annealed:
    """Particles of the target, equally weighted on each island.

    Attributes:
        state: points ``(R N, d)``, island after island, with log-density and gradient.
        island_evidence: log Z of each island, ``(R,)``.
        temperatures: beta_1, ..., 1.
        acceptance: mean over the moves at each temperature.
        mover: the adapted kernel, to go on with.
        finished: False if the budget ended before beta = 1, or the path could not get there.
        gradient_calls: counted for each particle.
    """

    state: State
    island_evidence: Tensor
    temperatures: list[float]
    acceptance: list[float]
    mover: Mover
    finished: bool
    gradient_calls: int

    @property
    def log_evidence(self) -> float:
        """log Z."""
        return log_evidence(self.island_evidence)[0]

    @property
    def log_evidence_error(self) -> float:
        """Its standard error, from the islands."""
        return log_evidence(self.island_evidence)[1]

    @property
    def log_weights(self) -> Tensor:
        """log-weight of every particle, ``(R N,)``; their mean weight is 1."""
        each = self.island_evidence - self.log_evidence
        return each.repeat_interleave(len(self.state.z) // len(each))


def anneal(
    target: Target,
    reference: Proposal | None = None,
    *,
    dim: int | None = None,
    particles: int = 4096,
    islands: int = ISLANDS,
    ess: float = 0.7,
    leapfrogs: int | None = None,
    moves: tuple[int, int] = (2, 12),
    budget: Budget | None = None,
    generator: torch.Generator | None = None,
    callback: Callable[[float, Tensor], None] | None = None,
) -> Annealed:
    """Carries particles from the reference to the target by adaptive annealed SMC.

    Args:
        target: unnormalized log-density; -inf and NaN mean that a point is impossible.
        reference: a distribution with `sample(n, generator)` and a normalized `log_prob(z)`, wider
            than the target, such as `Gaussian`; by default one fitted by `damc.kernels.pilot`.
        dim: size of z, wanted if there is no reference.
        particles: in all.
        islands: R, groups of particles that never exchange any.
        ess: the share of effective particles that each change of temperature keeps.
        leapfrogs: of the kernel, by default more in higher dimension.
        moves: least and most moves at a temperature; they end when particles get no further.
        budget: of gradients and seconds; without one it takes what it takes.
        generator: source of all randomness.
        callback: called as ``callback(beta, z)`` with the particles moved at each temperature.

    Example:
        >>> from damc.kernels.independence import Gaussian
        >>> target = lambda z: -(z - 3).square().sum(1) / 2
        >>> found = anneal(target, Gaussian(2, 5.0), generator=torch.Generator().manual_seed(0))
        >>> abs(found.log_evidence - math.log(2 * math.pi)) < 0.1
        True
    """
    if islands < 2 or particles % islands or particles < 2 * islands:
        raise BadInput(
            f"particles must divide into at least 2 islands of 2 or more, got {particles} and "
            f"{islands}"
        )
    if not 0 < ess < 1:
        raise BadInput(f"ess must lie between 0 and 1, got {ess}")
    budget = Budget() if budget is None else budget
    spent = budget.spent
    if reference is None:
        if dim is None or dim < 1:
            raise BadInput(f"anneal must be given a reference or the dim of the target, got {dim}")
        reference = pilot(frozen(target), dim, budget=budget, generator=generator).reference
    z = reference.sample(particles, generator)
    path = _Path(frozen(target), reference)
    p, r = path.parts(z)
    budget.spend(particles)
    scale = getattr(reference, "factor", None)
    leapfrogs = leapfrogs or _leapfrogs(z.shape[1])
    mover = Mover(HMC(0.5, leapfrogs=leapfrogs, target_acceptance=None, scale=scale))
    evidence = z.new_zeros(islands)

    possible = p[0] > -math.inf
    if not bool(possible.any()):
        raise Diverged("the log-density is not finite at any point of the reference")
    # Impossible points have weight 0 at every temperature above 0.
    increment = torch.where(possible, 0.0, -math.inf)
    evidence, index = _reweight(increment, evidence, generator)
    z, p, r = z[index], _rows(p, index), _rows(r, index)

    beta, betas, acceptance = 0.0, list[float](), list[float]()
    while beta < 1:
        log_ratio = p[0] - r[0]
        step = _step(log_ratio, 1 - beta, ess)
        if step < _LEAST_STEP or budget.left <= 0:
            break
        beta = 1.0 if beta + step >= 1 - 1e-12 else beta + step
        evidence, index = _reweight(step * log_ratio, evidence, generator)
        z, p, r = z[index], _rows(p, index), _rows(r, index)
        path.beta = beta
        state = State(z, *path.mix(p, r))
        state, accepted = mover.move(state, path, moves, budget, generator)
        z, (p, r) = state.z, path.split(state)
        betas.append(beta)
        acceptance.append(accepted)
        if callback is not None:
            callback(beta, z)
    state = State(z, p[0], p[1])
    return Annealed(state, evidence, betas, acceptance, mover, beta == 1, budget.spent - spent)


def joined(runs: list[Annealed]) -> Annealed:
    """Several runs as one, with the islands of all."""
    last = runs[-1]
    parts = [(run.state.z, run.state.log_prob, run.state.grad) for run in runs]
    return replace(
        last,
        state=State(*(torch.cat(part) for part in zip(*parts, strict=True))),  # type: ignore[arg-type]
        island_evidence=torch.cat([run.island_evidence for run in runs]),
        finished=all(run.finished for run in runs),
        gradient_calls=sum(run.gradient_calls for run in runs),
    )


def log_evidence(island_evidence: Tensor) -> tuple[float, float]:
    """log of the islands' mean evidence, and its standard error."""
    most = island_evidence.max()
    weights = (island_evidence - most).exp()
    error = weights.std() / weights.mean() / math.sqrt(len(weights))
    return float(most + weights.mean().log()), float(error)


def resample(log_weights: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Systematic resampling of every row: indices ``(R, N)`` for log-weights ``(R, N)``.

    A particle of weight w among weights that sum to 1 is taken N w times, rounded up or down.
    """
    weights = torch.softmax(log_weights, 1)
    n = weights.shape[1]
    u = torch.empty_like(weights[:, :1]).uniform_(generator=generator)
    positions = (torch.arange(n, device=weights.device, dtype=weights.dtype) + u) / n
    cumulative = weights.cumsum(1)
    cumulative = cumulative / cumulative[:, -1:]
    return torch.searchsorted(cumulative, positions.contiguous()).clamp(max=n - 1)


class _Path:
    """p_beta, which evaluates the target and the reference once a point."""

    def __init__(self, target: LogProb, reference: Proposal) -> None:
        self.target, self.reference, self.beta = target, reference, 0.0

    def __call__(self, z: Tensor) -> Tensor:
        return self.value_and_grad(z)[0]

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.mix(*self.parts(z))

    def parts(self, z: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Value and gradient of the target and of the reference."""
        return possible(self.target, z), self._of_reference(z)

    def mix(self, p: tuple[Tensor, Tensor], r: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        b = self.beta
        return (1 - b) * r[0] + b * p[0], (1 - b) * r[1] + b * p[1]

    def split(self, state: State) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The target's and the reference's part where a state already knows their mixture."""
        assert state.log_prob is not None and state.grad is not None
        r, b = self._of_reference(state.z), self.beta
        p = ((state.log_prob - (1 - b) * r[0]) / b, (state.grad - (1 - b) * r[1]) / b)
        return p, r

    def _of_reference(self, z: Tensor) -> tuple[Tensor, Tensor]:
        own: Callable[[Tensor], tuple[Tensor, Tensor]] | None
        own = getattr(self.reference, "value_and_grad", None)
        return value_and_grad(self.reference.log_prob, z) if own is None else own(z)


def _leapfrogs(dim: int) -> int:
    """The step size that keeps the acceptance falls as d^(-1/4), so their number grows so."""
    return max(3, round(2.5 * math.sqrt(math.sqrt(dim))))


def _step(log_ratio: Tensor, most: float, share: float) -> float:
    """The largest change of beta, up to `most`, that keeps a share of the particles effective."""

    def kept(step: float) -> float:
        w = (step * (log_ratio - log_ratio.max())).exp()
        return float(w.sum().square() / w.square().sum() / len(w))

    if kept(most) >= share:
        return most
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2 if low else high / 10
        low, high = (middle, high) if kept(middle) >= share else (low, middle)
        if low and high / low < 1.001:
            break
    return low


def _reweight(
    increment: Tensor, evidence: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Each island's evidence after a reweighting, and which particles (of all) survive it."""
    rows = increment.view(len(evidence), -1)
    n = rows.shape[1]
    gain = rows.logsumexp(1) - math.log(n)
    dead = gain == -math.inf
    # An island without a possible particle counts for nothing; it goes on with anyone's.
    index = resample(torch.where(dead[:, None], 0.0, rows), generator)
    index = index + torch.arange(len(rows), device=rows.device)[:, None] * n
    if bool(dead.any()):
        anyone = resample(increment[None], generator)[0]
        index = torch.where(dead[:, None], anyone.view_as(rows), index)
    return evidence + gain, index.flatten()


def _rows(part: tuple[Tensor, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
    return part[0][index], part[1][index]
