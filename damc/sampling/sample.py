"""`damc.sample`: draws from any density in one call, with evidence, weights and a verdict.

A pilot finds where the density is, annealed SMC carries particles there twice (the second time from
a reference that fits what the first one found), more moves of the kernel refine them, and the
verdict says whether all of this agrees; see `damc.kernels.pilot`, `damc.kernels.smc` and
`damc.sampling.verdict`.
"""

from __future__ import annotations

__all__ = ["Draws", "sample"]

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from damc.density import LogProb, Target, as_log_prob
from damc.errors import BadInput
from damc.kernels.base import State
from damc.kernels.mover import Budget, Possible
from damc.kernels.pilot import Pilot, pilot
from damc.kernels.reference import Reference
from damc.kernels.smc import ISLANDS, Annealed, anneal, joined
from damc.sampling.observations import check_alone
from damc.sampling.supports import Support, as_support
from damc.sampling.verdict import Evidence, evaluated, lost_paths, verdict, worth, worth_each

if TYPE_CHECKING:
    from damc.sampling.posterior import AmortizedPosterior

_FIRST = 1024  # particles of the first annealing
_SECOND = 2048  # of the second one
_MOST = 8192  # of each later one, made only where islands differ
_RUNS = 6  # of those, at most
_REFINE = 24  # moves after annealing, at least
_POOL = 8  # draws made for each one kept


@dataclass(frozen=True)
class Draws:
    """Draws from a density, and how far they can be trusted.

    Attributes:
        samples: ``(n, d)``, float64.
        log_weights: ``(n,)``, with mean weight 1; draws of one island share theirs.
        log_evidence: log Z, the log of the integral of the density.
        log_evidence_error: its standard error.
        ess: how many independent draws they are worth.
        trusted: whether every check passed.
        report: one sentence that says why, or why not.
        gradient_calls: gradients of the log-density, counted for each point.
        sampler: an amortized sampler of the same density, if one was trained.
        checks: the figures behind the verdict.
        islands: groups of draws that are independent of each other, in equal parts in order.
    """

    samples: Tensor
    log_weights: Tensor
    log_evidence: float
    log_evidence_error: float
    ess: float
    trusted: bool
    report: str
    gradient_calls: int
    sampler: Any = None
    checks: dict[str, float] = field(default_factory=dict)
    islands: int = ISLANDS

    def to_arviz(self) -> Any:
        """The draws as arviz's `InferenceData`, an island being a chain."""
        try:
            import arviz
        except ImportError as error:
            raise BadInput(
                "to_arviz needs arviz, which is not installed: pip install 'damc[diagnostics]'"
            ) from error
        each = len(self.samples) // self.islands
        z = self.samples[: each * self.islands].view(self.islands, each, -1).numpy()
        weights = self.log_weights[: each * self.islands].view(self.islands, each).numpy()
        return arviz.from_dict({"z": z}, sample_stats={"log_weight": weights})

    def plot(self, most: int = 5) -> Any:
        """Histograms and pairs of the first coordinates, as a matplotlib figure."""
        from matplotlib.figure import Figure

        k = min(most, self.samples.shape[1])
        figure = Figure(figsize=(2.2 * k, 2.2 * k), layout="constrained")
        axes = figure.subplots(k, k, squeeze=False)
        z, weights = self.samples[:, :k].numpy(), self.log_weights.exp().numpy()
        for i in range(k):
            for j in range(k):
                if i == j:
                    axes[i, i].hist(z[:, i], bins=60, weights=weights, density=True)
                elif i > j:
                    axes[i, j].scatter(z[:, j], z[:, i], s=1, alpha=0.3, linewidths=0)
                else:
                    axes[i, j].set_axis_off()
        figure.suptitle(self.report, fontsize=8, wrap=True)
        return figure


@overload
def sample(
    log_prob: Target,
    dim: int,
    n: int = ...,
    *,
    context: None = ...,
    support: Any = ...,
    seed: int = ...,
    gradients: int | None = ...,
    minutes: float = ...,
) -> Draws: ...


@overload
def sample(
    log_prob: Target,
    dim: int,
    n: int = ...,
    *,
    context: object,
    support: Any = ...,
    seed: int = ...,
    gradients: int | None = ...,
    minutes: float = ...,
) -> AmortizedPosterior: ...


def sample(
    log_prob: Target,
    dim: int,
    n: int = 10_000,
    *,
    context: Any = None,
    support: Any = None,
    seed: int = 0,
    gradients: int | None = None,
    minutes: float = 5.0,
) -> Draws | AmortizedPosterior:
    """Draws from any continuous density, given by its unnormalized log-density.

    With a context, the log-density is log p(z, x), and what comes back is one sampler of the
    posteriors of all x; see `damc.sampling.conditional`.

    Args:
        log_prob: ``(B, dim)`` to ``(B,)``, in torch operations; it is given float64 points if it
            can take them. -inf and NaN mean that a point is impossible.
        dim: size of a point.
        n: how many draws; with a context each call of ``draws`` says so itself.
        context: of a conditional log-density, ``(z, x)`` to ``(B,)``: a simulator
            ``(n, generator) -> (z, x)``, pairs of tensors (z, x), or observations x ``(N, ...)``.
        support: a constraint of `torch.distributions.constraints`, or a list of them; see
            `damc.sampling.supports`.
        seed: of everything random; a run that `minutes` does not cut short repeats bit for bit.
        gradients: at most so many gradients of the log-density, counted for each point.
        minutes: at most about so much time.

    Returns:
        The draws, or with a context an `AmortizedPosterior`, whose ``draws(x)`` are those of one
        observation. Look at `Draws.trusted` and `Draws.report` before you use them.

    Raises:
        BadInput: if an argument is not what it must be.
        Diverged: if the log-density is finite nowhere that was tried.

    Example:
        >>> draws = sample(lambda z: -(z - 50).square().sum(1) / 200, dim=2, n=1000)
        >>> draws.trusted, draws.samples.shape
        (True, torch.Size([1000, 2]))
    """
    for name, value in (("dim", dim), ("n", n)):
        if not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be a positive whole number, got {value!r}")
    if not minutes > 0 or (gradients is not None and gradients < 1):
        raise BadInput(f"gradients and minutes must be positive, got {gradients} and {minutes}")
    if context is not None:
        from damc.sampling.conditional import amortize  # which needs `Draws`

        return amortize(log_prob, dim, context, support=support, seed=seed, minutes=minutes,
                        gradients=gradients)  # fmt: skip
    check_alone(log_prob)
    bijection = as_support(support, dim)
    generator = torch.Generator().manual_seed(seed)
    target = _checked(log_prob, dim, bijection, generator)
    budget = Budget(math.inf if gradients is None else gradients, 60 * minutes)
    size = dim if bijection is None else bijection.free
    found = pilot(target, size, budget=budget, generator=generator)
    evidence = _run(target, found, n, budget, generator)
    return _draws(n, bijection, evidence, generator)


def _run(
    target: LogProb, found: Pilot, n: int, budget: Budget, generator: torch.Generator
) -> Evidence:
    """All annealings and the moves after them."""
    size = len(found.reference.mean)
    count = _FIRST if size <= 60 else _FIRST // 4
    start = budget.elapsed
    first = anneal(target, found.reference, particles=count, ess=0.7, budget=budget,
                   generator=generator)  # fmt: skip
    pace = (budget.elapsed - start) / first.gradient_calls  # seconds for a gradient
    reference = found.reference
    if first.finished and not lost_paths(found, first):
        z = first.state.z
        reference = (Reference.fit(z, 1.3) if len(z) >= 10 * size else None) or reference
    most = _affordable(first, pace, budget)
    if first.finished and most < count:  # no budget for another
        runs = [first]
    else:
        runs = [_anneal(target, reference, min(_SECOND, most), budget, generator)]
    # Islands must be of one size, so the smaller run only tells whether larger ones are needed.
    while _differ(joined(runs[1:] or runs)) and len(runs) <= _RUNS:
        particles = min(_MOST, most)
        price = 1.5 * particles * runs[-1].gradient_calls / len(runs[-1].state.z)
        late = budget.elapsed + pace * price > 0.7 * budget.seconds
        if late or budget.spent + price > 0.7 * budget.gradients:
            break
        runs.append(_anneal(target, reference, particles, budget, generator))
    second = joined(runs[1:] or runs)
    states, accepted = _refine(target, n, second, budget, generator)
    return Evidence(found, first, second, states, accepted, lost_paths(found, second), budget)


def _anneal(
    target: LogProb,
    reference: Reference,
    particles: int,
    budget: Budget,
    generator: torch.Generator,
) -> Annealed:
    return anneal(
        target,
        reference,
        particles=particles,
        ess=0.9,
        moves=(3, 12),
        budget=budget,
        generator=generator,
    )


def _differ(done: Annealed) -> bool:
    """Whether islands differ by more than independent draws would, and are worth too few."""
    if not done.finished:
        return False
    each, n = worth_each([done.state], len(done.island_evidence)), len(done.state.z)
    least, average = float(each.min()), worth([done.state], len(done.island_evidence))
    few = least < 2500 and (average < 0.6 * n or least < 0.12 * n)
    return few or done.log_evidence_error > 0.03


def _refine(
    target: LogProb, n: int, second: Annealed, budget: Budget, generator: torch.Generator
) -> tuple[list[State], float]:
    """Sweeps of moves over all particles, each of them a set of draws."""
    particles, size = second.state.z.shape
    least = math.ceil(n / particles)
    most = max(least, math.ceil(min(_POOL * n, max(n, 4_000_000 // size)) / particles))
    moves = max(3, math.ceil(_REFINE / most))
    second.mover.adapt(second.state.z)
    state, states, accepted, start = second.state, list[State](), 0.0, budget.spent
    for _ in range(most):
        state, accepted = second.mover.move(
            state, Possible(target), (moves, 2 * moves), budget, generator, adapt=False
        )
        states.append(state)
        enough = len(states) >= least and budget.spent > 2 * start
        if budget.left <= 0 or enough or (len(states) >= least and budget.left < 0.15):
            break
    return states, accepted


def _affordable(first: Annealed, pace: float, budget: Budget) -> int:
    """As many particles as the budget bears, going by what the first annealing cost."""
    each = 2.5 * first.gradient_calls / len(first.state.z)
    by_time = 0.5 * (budget.seconds - budget.elapsed) / (each * pace)
    by_calls = 0.5 * (budget.gradients - budget.spent) / each
    most = max(1.0, min(_MOST, by_time, by_calls))
    return ISLANDS << max(4, math.floor(math.log2(most / ISLANDS)))


def _draws(
    n: int, bijection: Support | None, evidence: Evidence, generator: torch.Generator
) -> Draws:
    """n draws, equally many of every island."""
    second, states = evidence.second, evidence.states
    islands, size = len(second.island_evidence), second.state.z.shape[1]
    z = torch.stack([state.z for state in states])  # (sweeps, particles, d)
    value = torch.stack([evaluated(state) for state in states])
    z = z.view(len(z), islands, -1, size).transpose(0, 1).flatten(1, 2)
    value = value.view(len(value), islands, -1).transpose(0, 1).flatten(1, 2)
    # Systematically along the log-density, so that those kept have the tails of all that were
    # made; then in random order.
    each = math.ceil(n / islands)
    u = torch.rand(islands, 1, generator=generator, dtype=value.dtype)
    position = ((torch.arange(each) + u) * (value.shape[1] / each)).long()
    index = value.argsort(1).gather(1, position.clamp(max=value.shape[1] - 1))
    index = index.gather(1, torch.rand(islands, each, generator=generator).argsort(1))
    z = z.gather(1, index[..., None].expand(-1, -1, size))
    weights = (second.island_evidence - second.log_evidence)[:, None].expand(-1, each)
    u = z.flatten(0, 1)[:n]
    x = u if bijection is None else bijection(u)[0]
    trusted, report, checks = verdict(evidence)
    return Draws(
        x,
        weights.flatten()[:n].clone(),
        second.log_evidence if second.finished else math.nan,
        second.log_evidence_error if second.finished else math.inf,
        min(float(n), worth(states, islands)),
        trusted,
        report,
        evidence.budget.spent,
        checks=checks,
        islands=islands,
    )


def _checked(
    log_prob: Target, dim: int, bijection: Support | None, generator: torch.Generator
) -> LogProb:
    """The target on unconstrained float64 points, tried out once."""
    function = as_log_prob(log_prob)
    size = dim if bijection is None else bijection.free
    u = torch.randn(8, size, dtype=torch.float64, generator=generator)
    x = u if bijection is None else bijection(u)[0]
    value: Any = None
    problem: Exception | None = None
    for dtype in (torch.float64, torch.get_default_dtype()):
        try:
            value = function(x.to(dtype).requires_grad_())
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            problem = problem or error
            continue
        break
    else:
        raise BadInput(
            f"log_prob must take points of shape (B, {dim}) in torch operations; on (8, {dim}) it "
            f"raised {type(problem).__name__}: {problem}"
        ) from problem
    if not isinstance(value, Tensor):
        raise BadInput(f"log_prob must return a tensor, got {type(value).__name__}")
    if value.shape != (8,):
        raise BadInput(
            f"log_prob must return one value for each point, shape (8,) for (8, {dim}), got shape "
            f"{tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise BadInput("log_prob must depend on its points through torch operations")

    def cast(x: Tensor) -> Tensor:
        return function(x.to(dtype)).to(x.dtype)

    plain = function if dtype == torch.float64 else cast
    return plain if bijection is None else bijection.pull_back(plain)
