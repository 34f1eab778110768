"""`damc.sample`: draws from any density in one call, with evidence, weights and a verdict.

A pilot finds where the density is, annealed SMC carries particles there twice (the second time from
a reference that fits what the first one found), climbs from scattered starts hunt for regions that
both missed, more moves of the kernel refine the particles, and the verdict says whether all of this
agrees; see `damc.kernels.pilot`, `damc.kernels.smc`, `damc.kernels.hunt` and
`damc.sampling.verdict`. `damc.sampling.amortized` makes a sampler of the particles.
"""

from __future__ import annotations

__all__ = ["sample"]

import math
from dataclasses import replace
from typing import Any

import torch

from damc.density import LogProb, Target
from damc.errors import BadInput
from damc.kernels.base import State
from damc.kernels.hunt import hunt, scattered, together
from damc.kernels.mover import Budget, Possible
from damc.kernels.pilot import Pilot, pilot
from damc.kernels.reference import Reference
from damc.kernels.smc import ISLANDS, Annealed, anneal, joined
from damc.randomness import derive_seed
from damc.sampling.amortized import amortized
from damc.sampling.check import checked, positive
from damc.sampling.draws import Draws
from damc.sampling.shells import FALLS, pole, tail
from damc.sampling.supports import as_support
from damc.sampling.verdict import (
    Evidence,
    evaluated,
    lost_paths,
    tail_index,
    verdict,
    worth,
    worth_each,
)

_FIRST = 1024  # particles of the first annealing
_SECOND = 2048  # of the second one
_MOST = 8192  # of each later one, made only where islands differ
_RUNS = 6  # of those, at most
_REFINE = 24  # moves after annealing, at least
_POOL = 8  # draws made for each one kept
_HEAVY_POOL = 40  # where tails are heavy
_HEAVY = 0.25  # the tail index from which on draws have no fourth moment
_PEAKS = 3  # of the highest particles, climbed from to look for poles


def sample(
    log_prob: Target,
    dim: int,
    n: int = 10_000,
    *,
    support: Any = None,
    seed: int = 0,
    gradients: int | None = None,
    minutes: float = 5.0,
    amortize: bool = False,
    resume: Draws | None = None,
    progress: bool = False,
) -> Draws:
    """Draws from any continuous density, given by its unnormalized log-density.

    Args:
        log_prob: ``(B, dim)`` to ``(B,)``, in torch operations; it is given float64 points if it
            can take them. -inf and NaN mean that a point is impossible.
        dim: size of a point.
        n: how many draws.
        support: a constraint of `torch.distributions.constraints`, or a list of them; see
            `damc.sampling.supports`.
        seed: of everything random; a run that `minutes` does not cut short repeats bit for bit.
        gradients: at most so many gradients of the log-density, counted for each point.
        minutes: at most about so much time, without that of `amortize`.
        amortize: train `Draws.sampler` at once, and hear what its weights say of the evidence.
        resume: draws of an earlier call for the same density, to go on from with a new budget: its
            particles are kept, and as many again are made beside them.
        progress: show a bar.

    Returns:
        The draws. Look at `Draws.trusted` and `Draws.report` before you use them.

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
    bijection = as_support(support, dim)
    earlier = None if resume is None else _earlier(resume, dim)
    calls, spent = (0, 0) if earlier is None else (earlier.calls, earlier.gradient_calls)
    generator = torch.Generator().manual_seed(derive_seed(seed, "sample", calls) if calls else seed)
    target = checked(log_prob, dim, bijection, generator)

    from tqdm.auto import tqdm

    with tqdm(desc="sample", unit=" gradients", unit_scale=True, total=gradients,
              disable=not progress) as bar:  # fmt: skip
        budget = Budget(math.inf if gradients is None else gradients, 60 * minutes,
                        watch=bar.update)  # fmt: skip
        if earlier is None:
            bar.set_description("pilot")
            size = dim if bijection is None else bijection.free
            found = pilot(target, size, budget=budget, generator=generator)
            first, found, reference = _approach(target, found, budget, generator, bar)
            runs: list[Annealed] = []
        else:
            found, first, reference = earlier.found, earlier.first, earlier.reference
            runs = earlier.runs
        if _integrable(slopes := _slopes(target, first.state, budget, generator)):
            runs = _annealings(target, first, reference, runs, budget, generator, bar)
        second = joined(runs or [first])
        bar.set_description("refine")
        states, accepted = _refine(target, n, second, budget, generator)
        if _integrable(slopes):
            slopes = _slopes(target, states[-1], budget, generator)
        lost = lost_paths(found, second)
    evidence = Evidence(target, bijection, found, first, reference, runs, second, states, accepted,
                        lost, *slopes, budget, spent + budget.spent, calls + 1)  # fmt: skip
    draws = _draws(n, evidence, generator)
    return _with_sampler(draws, seed, progress) if amortize else draws


def _approach(
    target: LogProb, found: Pilot, budget: Budget, generator: torch.Generator, bar: Any
) -> tuple[Annealed, Pilot, Reference]:
    """A first annealing, a hunt for what it missed, and the reference of the next one."""
    size = len(found.reference.mean)
    bar.set_description("first annealing")
    first = anneal(
        target,
        found.reference,
        particles=_FIRST if size <= 60 else _FIRST // 4,
        ess=0.7,
        budget=budget,
        generator=generator,
    )
    if not first.finished:
        return first, found, found.reference
    bar.set_description("hunt")
    starts = scattered(first.state.z, budget, generator)
    if len(starts):
        more = hunt(target, starts, budget, generator)
        found = replace(found, paths=together(found.paths, more))
        if lost_paths(found, first):
            found = _widened(target, found, first, generator)
    z = first.state.z
    fitted = None
    if len(z) >= 10 * size and not lost_paths(found, first):
        fitted = Reference.fit(z, 1.3)
    return first, found, fitted or found.reference


def _widened(target: LogProb, found: Pilot, first: Annealed, generator: torch.Generator) -> Pilot:
    """The pilot with a reference that covers the regions found since, too."""
    fair = found.paths.elbo > first.log_evidence - 4
    mean, factor = found.paths.mean[fair], found.paths.factor[fair]
    each = max(8, len(first.state.z) // max(1, len(mean)))
    w = torch.empty(len(mean), each, mean.shape[1], dtype=mean.dtype).normal_(generator=generator)
    points = torch.cat([first.state.z, (mean[:, None] + w @ factor.mT).flatten(0, 1)])
    return replace(found, reference=Reference.fit(points) or found.reference)


def _annealings(
    target: LogProb,
    first: Annealed,
    reference: Reference,
    earlier: list[Annealed],
    budget: Budget,
    generator: torch.Generator,
    bar: Any,
) -> list[Annealed]:
    """Annealings from the second reference, all of one size: more where islands differ."""
    bar.set_description("annealing")
    pace = budget.elapsed / max(1, budget.spent)  # seconds for a gradient
    most = _affordable(first, pace, budget)
    if earlier:
        size = len(earlier[-1].state.z)
        if most < size and size != len(first.state.z):
            return earlier
        return [*earlier, _anneal(target, reference, size, budget, generator)]
    if first.finished and most < len(first.state.z):  # no budget for another
        return [first]
    runs = [_anneal(target, reference, min(_SECOND, most), budget, generator)]
    # Islands must be of one size, so the smaller run only tells whether larger ones are needed.
    while _differ(joined(runs[1:] or runs)) and len(runs) <= _RUNS:
        particles = min(_MOST, most)
        price = 1.5 * particles * runs[-1].gradient_calls / len(runs[-1].state.z)
        late = budget.elapsed + pace * price > 0.7 * budget.seconds
        if late or budget.spent + price > 0.7 * budget.gradients:
            break
        runs.append(_anneal(target, reference, particles, budget, generator))
    return runs[1:] or runs


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


def _affordable(first: Annealed, pace: float, budget: Budget) -> int:
    """As many particles as the budget bears, going by what the first annealing cost."""
    each = 2.5 * first.gradient_calls / len(first.state.z)
    by_time = 0.5 * (budget.seconds - budget.elapsed) / (each * pace) if pace else math.inf
    by_calls = 0.5 * (budget.gradients - budget.spent) / each
    most = max(1.0, min(_MOST, by_time, by_calls))
    return ISLANDS << max(4, math.floor(math.log2(most / ISLANDS)))


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
    heavy = tail_index(second.state.z) > _HEAVY
    pool = min((_HEAVY_POOL if heavy else _POOL) * n, max(n, 4_000_000 // size))
    most = max(least, math.ceil(pool / particles))
    moves = max(3, math.ceil(_REFINE / most))
    second.mover.adapt(second.state.z)
    state, states, accepted, start = second.state, list[State](), 0.0, budget.spent
    for _ in range(most):
        state, accepted = second.mover.move(
            state, Possible(target), (moves, 2 * moves), budget, generator, adapt=False
        )
        states.append(state)
        enough = len(states) >= least and budget.spent > 2 * start and not heavy
        if budget.left <= 0 or enough or (len(states) >= least and budget.left < 0.15):
            break
    return states, accepted


def _slopes(
    target: LogProb, state: State, budget: Budget, generator: torch.Generator
) -> tuple[float, float]:
    """How the density's mass changes far away from the points, and close to the highest ones."""
    highest = evaluated(state).topk(min(_PEAKS, len(state.z))).indices
    z = state.z[:: max(1, len(state.z) // 4096)]
    far = tail(target, z, budget, generator)
    return far, pole(target, z, state.z[highest], budget, generator)


def _integrable(slopes: tuple[float, float]) -> bool:
    """Whether nothing speaks against a finite integral."""
    return slopes[0] <= FALLS and slopes[1] >= -FALLS


def _draws(n: int, evidence: Evidence, generator: torch.Generator) -> Draws:
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
    chosen = z.flatten(0, 1)[:n]
    support = evidence.support
    trusted, report, checks = verdict(evidence)
    return Draws(
        chosen if support is None else support(chosen)[0],
        weights.flatten()[:n].clone(),
        second.log_evidence if second.finished else math.nan,
        second.log_evidence_error if second.finished else math.inf,
        min(float(n), checks["ess"]),
        trusted,
        report,
        evidence.gradient_calls,
        checks=checks,
        islands=islands,
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
