"""The stages of `damc.sample`, from a pilot to particles of the target."""

from __future__ import annotations

__all__ = ["Work", "annealings", "approach", "from_peaks", "integrable", "slopes_of"]

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from damc.kernels.base import State
from damc.kernels.hunt import hunt, scattered, together
from damc.kernels.mover import Budget, Possible
from damc.kernels.pilot import Paths, Pilot, pilot
from damc.kernels.reference import Reference
from damc.kernels.smc import ISLANDS, Annealed, anneal, joined
from damc.sampling.jumps import Jumps, jumps_for
from damc.sampling.shells import FALLS, OUTER, OUTER_OF_SUPPORT, pole, tail
from damc.sampling.supports import Support
from damc.sampling.verdict import evaluated, lost_paths, worth, worth_each
from damc.sampling.watch import Watched

_FIRST = 1024  # particles of the first annealing
_SECOND = 2048  # of the second one
_MOST = 8192  # of each later one, made only where islands differ
_RUNS = 6  # of those, at most
_HUNTED = 60  # dimensions up to which ascents look for what was missed
_PEAKS = 3  # of the highest particles, ascended from to look for poles


@dataclass(frozen=True)
class Work:
    """What every stage needs: the density on R^k, what may be spent, and whom to tell."""

    target: Watched
    support: Support | None
    budget: Budget
    generator: torch.Generator
    stage: Callable[[str], None]
    notes: list[str] = field(default_factory=list)  # what the clock decided


def approach(work: Work, size: int) -> tuple[Annealed, Pilot, Reference]:
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


def from_peaks(work: Work, found: Pilot) -> Pilot:
    """What the pilot found, and what ascents from the highest points ever evaluated find."""
    if work.budget.left <= 0 or found.paths.mean.shape[1] > _HUNTED:
        return found
    more = hunt(work.target.target, work.target.highest(), work.budget, work.generator)
    return replace(found, paths=together(found.paths, more))


def _widened(work: Work, found: Pilot, first: Annealed) -> Reference:
    """A reference that covers the first particles and all regions with a fair share of mass."""
    fair = found.paths.elbo > first.log_evidence - 4
    regions = Paths(found.paths.mean[fair], found.paths.factor[fair], found.paths.elbo[fair])
    each = max(8, len(first.state.z) // len(regions.elbo))
    points = regions.draw(each, work.generator)[0].flatten(0, 1)
    return Reference.fit(torch.cat([first.state.z, points])) or found.reference


def annealings(
    work: Work, first: Annealed, reference: Reference, earlier: list[Annealed]
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


def _jumps(work: Work, runs: list[Annealed]) -> tuple[Jumps, State] | None:
    """Jumps of all particles, and the particles after them; None if they are refused."""
    work.stage("jumps")
    found = joined(runs)
    return jumps_for(found.state, found.mover, Possible(work.target), work.budget, work.generator)


def _anneal(
    work: Work,
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


def _affordable(work: Work, first: Annealed, pace: float) -> int:
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


def slopes_of(work: Work, state: State) -> tuple[float, float]:
    """How the density's mass changes far away from the points, and close to the highest ones."""
    if work.budget.left <= 0:  # not trusted anyway
        return -math.inf, math.inf
    highest = evaluated(state).topk(min(_PEAKS, len(state.z))).indices
    z = state.z[:: max(1, len(state.z) // 4096)]
    decades = OUTER if work.support is None else OUTER_OF_SUPPORT
    far = tail(work.target, z, work.budget, work.generator, decades)
    return far, pole(work.target, z, state.z[highest], work.budget, work.generator)


def integrable(slopes: tuple[float, float]) -> bool:
    """Whether nothing speaks against a finite integral."""
    return slopes[0] <= FALLS and slopes[1] >= -FALLS
