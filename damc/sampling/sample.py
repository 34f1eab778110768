"""`damc.sample`: draws from any density in one call, with evidence, weights and a verdict.

A pilot finds where the density is, annealed SMC carries particles there twice (the second time from
a reference that fits what the first one found), ascents from scattered starts hunt for regions that
both missed, more moves of the kernel refine the particles, and the verdict says whether all of this
agrees; see `damc.kernels.pilot`, `damc.kernels.smc`, `damc.kernels.hunt` and
`damc.sampling.verdict`. `damc.sampling.amortized` makes a sampler of the particles.
"""

from __future__ import annotations

__all__ = ["sample"]

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import torch
from tqdm.auto import tqdm

from damc.density import Target
from damc.errors import BadInput
from damc.kernels.base import State
from damc.kernels.hunt import hunt, scattered, together
from damc.kernels.mover import Budget, Possible
from damc.kernels.pilot import Paths, Pilot, pilot
from damc.kernels.reference import Reference
from damc.kernels.smc import ISLANDS, Annealed, anneal, joined
from damc.randomness import derive_seed
from damc.sampling.amortized import amortized
from damc.sampling.check import checked, positive
from damc.sampling.draws import Draws
from damc.sampling.jumps import Jumps, bridge, jumps_for
from damc.sampling.observations import check_alone
from damc.sampling.refine import Pool, chosen, pool_of, refine, tails
from damc.sampling.shells import FALLS, OUTER, OUTER_OF_SUPPORT, pole, tail
from damc.sampling.supports import Support, as_support
from damc.sampling.verdict import (
    Evidence,
    evaluated,
    lost_paths,
    verdict,
    worth,
    worth_each,
)
from damc.sampling.watch import Watched
from damc.sampling.weights import effective_size

if TYPE_CHECKING:
    from damc.sampling.posterior import AmortizedPosterior

_FIRST = 1024  # particles of the first annealing
_SECOND = 2048  # of the second one
_MOST = 8192  # of each later one, made only where islands differ
_RUNS = 6  # of those, at most
_HUNTED = 60  # dimensions up to which ascents look for what was missed
_PEAKS = 3  # of the highest particles, ascended from to look for poles


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
    amortize: bool = ...,
    resume: Draws | None = ...,
    progress: bool = ...,
    device: torch.device | str = ...,
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
    amortize: bool = False,
    resume: Draws | None = None,
    progress: bool = False,
    device: torch.device | str = "cpu",
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
        minutes: at most about so much time, without that of `amortize`.
        amortize: train `Draws.sampler` at once, and hear what its weights say of the evidence.
        resume: draws of an earlier call for the same density, to go on from with a new budget: its
            particles are kept, and as many again are made beside them.
        progress: show a bar.
        device: where the points are, with which `log_prob` is called, and the draws; it must be one
            with float64. It must be left out with a context.

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
    positive(dim=dim, n=n)
    if not minutes > 0 or (gradients is not None and gradients < 1):
        raise BadInput(f"gradients and minutes must be positive, got {gradients} and {minutes}")
    if context is not None:
        if torch.device(device).type != "cpu":
            raise BadInput(f"device must be left out with a context, got {device!r}")
        from damc.sampling.conditional import amortize as amortize_posterior

        return amortize_posterior(log_prob, dim, context, support=support, seed=seed,
                                  minutes=minutes, gradients=gradients)  # fmt: skip
    check_alone(log_prob)
    bijection = as_support(support, dim)
    earlier = None if resume is None else _earlier(resume, dim)
    calls = 0 if earlier is None else earlier.calls
    generator = _generator(device)
    generator.manual_seed(derive_seed(seed, "sample", calls) if calls else seed)
    target = Watched(checked(log_prob, dim, bijection, generator))
    with tqdm(unit=" gradients", unit_scale=True, total=gradients, disable=not progress) as bar:
        budget = Budget(gradients or math.inf, 60 * minutes, watch=bar.update)
        work = _Work(target, bijection, budget, generator, bar.set_description)
        if earlier is None:
            first, found, reference = _approach(work, dim if bijection is None else bijection.free)
        else:
            first, found, reference = earlier.first, earlier.found, earlier.reference
        slopes = _slopes(work, first.state)
        runs = [] if earlier is None else [run for run in earlier.runs if run.finished]
        jumping = None
        if _integrable(slopes):
            runs, jumping = _annealings(work, first, reference, runs)
        annealed = joined(runs or [first])
        work.stage("refine")
        jumps, start = jumping or (None, annealed.state)
        second = replace(annealed, state=start)
        states, accepted = refine(target, n, second, budget, generator, jumps)
        if budget.hurried:
            work.notes.append(f"{minutes:g} minutes left time for {len(states)} sweeps of moves")
        if jumps is not None:
            second = replace(second, island_evidence=bridge(
                jumps, Possible(target), states, len(second.island_evidence), budget, generator
            ))  # fmt: skip
        pool = tails(target, n, second, states, budget, generator) or pool_of(states)
        if _integrable(slopes):
            slopes = _slopes(work, states[-1])
            found = _from_peaks(work, found)
    spent = budget.spent + (0 if earlier is None else earlier.gradient_calls)
    lost = lost_paths(found, second)
    evidence = Evidence(target.target, bijection, found, first, reference, runs, annealed, jumps,
                        second, states, accepted, lost, *slopes, budget, spent, calls + 1,
                        tuple(work.notes))  # fmt: skip
    draws = _draws(n, evidence, pool, generator)
    return _with_sampler(draws, seed, progress) if amortize else draws


@dataclass(frozen=True)
class _Work:
    """What every stage needs: the density on R^k, what may be spent, and whom to tell."""

    target: Watched
    support: Support | None
    budget: Budget
    generator: torch.Generator
    stage: Callable[[str], None]
    notes: list[str] = field(default_factory=list)  # what the clock decided


def _generator(device: torch.device | str) -> torch.Generator:
    """A generator on the device that the user named."""
    try:
        return torch.Generator(device)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise BadInput(
            f"device must be one that torch has here, got {device!r}: {first}"
        ) from error


def _approach(work: _Work, size: int) -> tuple[Annealed, Pilot, Reference]:
    """A pilot, a first annealing, a hunt for what both missed, and the next one's reference."""
    work.stage("pilot")
    place = work.generator.device
    found = pilot(work.target, size, budget=work.budget, generator=work.generator, device=place)
    work.stage("first annealing")
    first = _anneal(work, found.reference, _FIRST if size <= 60 else _FIRST // 4, 0.7, (2, 12))
    if not first.finished:
        return first, found, found.reference
    work.stage("hunt")
    z = first.state.z
    starts = scattered(z, work.budget, work.generator)
    if len(starts):
        more = hunt(work.target, starts, work.budget, work.generator)
        found = replace(found, paths=together(found.paths, more))
    if lost_paths(found, first):
        return first, found, _widened(work, found, first)
    fitted = Reference.fit(z, 1.3) if len(z) >= 10 * size else None
    return first, found, fitted or found.reference


def _from_peaks(work: _Work, found: Pilot) -> Pilot:
    """What the pilot found, and what ascents from the highest points ever evaluated find."""
    if work.budget.left <= 0 or found.paths.mean.shape[1] > _HUNTED:
        return found
    more = hunt(work.target.target, work.target.highest(), work.budget, work.generator)
    return replace(found, paths=together(found.paths, more))


def _widened(work: _Work, found: Pilot, first: Annealed) -> Reference:
    """A reference that covers the first particles and all regions with a fair share of mass."""
    fair = found.paths.elbo > first.log_evidence - 4
    regions = Paths(found.paths.mean[fair], found.paths.factor[fair], found.paths.elbo[fair])
    each = max(8, len(first.state.z) // len(regions.elbo))
    points = regions.draw(each, work.generator)[0].flatten(0, 1)
    return Reference.fit(torch.cat([first.state.z, points])) or found.reference


def _annealings(
    work: _Work, first: Annealed, reference: Reference, earlier: list[Annealed]
) -> tuple[list[Annealed], tuple[Jumps, State] | None]:
    """Annealings from the second reference, all of one size, and jumps where islands differ.

    Islands differ where particles cannot leave their modes. If a mixture that fits the particles
    can, jumps set the masses right at little cost; if not, only more particles do.
    """
    work.stage("annealing")
    budget = work.budget
    pace = budget.elapsed / max(1, budget.spent)  # seconds for a gradient
    most = _affordable(work, first, pace)
    if first.finished and most < len(first.state.z) and not earlier:  # no budget for another
        return [first], None
    particles = len(earlier[-1].state.z) if earlier else min(_SECOND, most)
    runs = [*earlier, _anneal(work, reference, particles)]
    jumps = None
    # Islands must be of one size, so the smaller run only tells whether larger ones are needed.
    while _differ(joined(runs[1:] or runs)) and not earlier:
        if len(runs) == 1:
            jumps = _jumps(work, runs)
        if jumps is not None or len(runs) > _RUNS:
            break
        particles = min(_MOST, most)
        price = 1.5 * particles * runs[-1].gradient_calls / len(runs[-1].state.z)
        late = budget.elapsed + pace * price > 0.7 * budget.seconds
        if late or budget.spent + price > 0.7 * budget.gradients:
            if late:
                work.notes.append(f"there was no time for more than {len(runs)} annealings")
            break
        runs.append(_anneal(work, reference, particles))
    if not earlier:
        runs = runs[1:] or runs
    if jumps is None and _differ(joined(runs)):
        jumps = _jumps(work, runs)
    return runs, jumps


def _jumps(work: _Work, runs: list[Annealed]) -> tuple[Jumps, State] | None:
    """Jumps of all particles, and the particles after them; None if they are refused."""
    work.stage("jumps")
    found = joined(runs)
    return jumps_for(found.state, found.mover, Possible(work.target), work.budget, work.generator)


def _anneal(
    work: _Work,
    reference: Reference,
    particles: int,
    ess: float = 0.9,
    moves: tuple[int, int] = (3, 12),
) -> Annealed:
    return anneal(
        work.target,
        reference,
        particles=particles,
        ess=ess,
        moves=moves,
        budget=work.budget,
        generator=work.generator,
    )


def _affordable(work: _Work, first: Annealed, pace: float) -> int:
    """As many particles as the budget bears, going by what the first annealing cost."""
    budget = work.budget
    each = 2.5 * first.gradient_calls / len(first.state.z)
    by_time = 0.5 * (budget.seconds - budget.elapsed) / (each * pace) if pace else math.inf
    by_calls = 0.5 * (budget.gradients - budget.spent) / each
    most = max(1.0, min(_MOST, by_time, by_calls))
    particles = ISLANDS << max(4, math.floor(math.log2(most / ISLANDS)))
    if particles < _SECOND and by_time < by_calls:
        work.notes.append(
            f"{budget.seconds / 60:g} minutes left time for {particles:,} particles instead of "
            f"{_SECOND:,}"
        )
    return particles


def _differ(done: Annealed) -> bool:
    """Whether islands differ by more than independent draws would, and are worth too few."""
    if not done.finished:
        return False
    each, n = worth_each([done.state], len(done.island_evidence)), len(done.state.z)
    least, average = float(each.min()), worth([done.state], len(done.island_evidence))
    few = least < 2500 and (average < 0.6 * n or least < 0.12 * n)
    return few or done.log_evidence_error > 0.03


def _slopes(work: _Work, state: State) -> tuple[float, float]:
    """How the density's mass changes far away from the points, and close to the highest ones."""
    if work.budget.left <= 0:  # not trusted anyway
        return -math.inf, math.inf
    highest = evaluated(state).topk(min(_PEAKS, len(state.z))).indices
    z = state.z[:: max(1, len(state.z) // 4096)]
    decades = OUTER if work.support is None else OUTER_OF_SUPPORT
    far = tail(work.target, z, work.budget, work.generator, decades)
    return far, pole(work.target, z, state.z[highest], work.budget, work.generator)


def _integrable(slopes: tuple[float, float]) -> bool:
    """Whether nothing speaks against a finite integral."""
    return slopes[0] <= FALLS and slopes[1] >= -FALLS


def _draws(n: int, evidence: Evidence, pool: Pool, generator: torch.Generator) -> Draws:
    """n draws of the pool, with their verdict."""
    second, support = evidence.second, evidence.support
    z, weights = chosen(pool, n, evidence.island_weights, generator)
    trusted, report, checks = verdict(evidence)
    return Draws(
        z if support is None else support(z)[0],
        weights,
        second.log_evidence if second.finished else math.nan,
        second.log_evidence_error if second.finished else math.inf,
        min(effective_size(weights), checks["ess"]),
        trusted,
        report,
        evidence.gradient_calls,
        checks=checks,
        islands=len(second.island_evidence),
        evidence=evidence,
    )


def _with_sampler(draws: Draws, seed: int, progress: bool) -> Draws:
    """The draws with their sampler, and a verdict that has heard its weights."""
    assert draws.evidence is not None
    sampler = amortized(draws.evidence, seed=seed, progress=progress)
    generator = torch.Generator().manual_seed(derive_seed(seed, "weights of the sampler"))
    _, weights = sampler.weighted(2000, generator=generator)
    trusted, report, checks = verdict(draws.evidence, weights)
    judged = replace(draws, trusted=trusted, report=report, checks=checks)
    judged.__dict__["sampler"] = sampler  # where its cached property looks first
    return judged


def _earlier(resume: Draws, dim: int) -> Evidence:
    if not isinstance(resume, Draws) or resume.evidence is None:
        raise BadInput(f"resume must be draws of an earlier call, got {type(resume).__name__}")
    if resume.samples.shape[1] != dim:
        raise BadInput(f"resume must be draws of dimension {dim}, got {resume.samples.shape[1]}")
    return resume.evidence
