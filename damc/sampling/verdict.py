"""May these draws be trusted? Checks that catch bad scale, poor mixing and lost modes."""

from __future__ import annotations

__all__ = ["Evidence", "evaluated", "lost_paths", "tail_index", "verdict", "worth", "worth_each"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.kernels.base import State
from damc.kernels.mover import Budget
from damc.kernels.pilot import Pilot
from damc.kernels.smc import Annealed


@dataclass(frozen=True)
class Evidence:
    """All that a verdict looks at.

    Attributes:
        found: by the pilot.
        first, second: both annealings.
        states: the particles after each sweep of moves that followed.
        acceptance: of the last sweep.
        lost: paths of the pilot, good ones, that no particle is near to.
        budget: spent.
    """

    found: Pilot
    first: Annealed
    second: Annealed
    states: list[State]
    acceptance: float
    lost: int
    budget: Budget


def verdict(e: Evidence) -> tuple[bool, str, dict[str, float]]:
    """Whether every check passed, one sentence that says why or why not, and the figures."""
    islands = len(e.second.island_evidence)
    before, after = e.second.state, e.states[-1]
    moved, grown = _shift(before.z, after.z)
    still = float((before.z == after.z).all(1).double().mean())
    ess, least = worth(e.states, islands), worth_each(e.states, islands).min()
    error = e.second.log_evidence_error
    gap = abs(e.second.log_evidence - e.first.log_evidence)
    bound = float(e.found.paths.elbo.max()) - e.second.log_evidence
    checks = {
        "temperatures": float(len(e.second.temperatures)),
        "particles": float(len(after.z)),
        "acceptance": e.acceptance,
        "shift": moved,
        "growth": grown,
        "still": still,
        "ess": ess,
        "least ess": float(least),
        "evidence gap": gap,
        "elbo above evidence": bound,
        "lost paths": float(e.lost),
        "tail": tail_index(torch.cat([state.z for state in e.states])),
    }
    noise = math.sqrt(2 / max(ess, 1.0))
    reasons = [
        (
            not e.second.finished,
            "annealing stopped before it reached the target, for want of budget or because the "
            "target is out of reach of its reference",
        ),
        (e.budget.left <= 0, "the budget ended before all moves were made"),
        (grown > 0.25 + 4 * noise, "draws spread further the longer they move: the density may "
         f"be improper or unbounded (spread grew {math.exp(grown):.1f}-fold)"),
        (checks["tail"] > 1.5, "the tails fall too slowly for the density to have a finite "
         f"integral (tail index {checks['tail']:.1f}, at most 1 is safe)"),
        (moved > 0.1 + 4 * noise, f"further moves still shift the draws, by {moved:.2f} sd"),
        (still > 0.02, f"{still:.0%} of the particles could not be moved"),
        (e.acceptance < 0.2, f"the kernel accepts only {e.acceptance:.0%} of its moves"),
        (error > 0.25, f"independent islands disagree on the evidence, by {error:.2f} nats"),
        (least < 60, f"independent islands disagree: a coordinate is worth {least:.0f} draws"),
        (
            e.first.finished and gap > 0.5 + 4 * math.hypot(error, e.first.log_evidence_error),
            f"two annealings from different references disagree on the evidence, by {gap:.2f}",
        ),
        (bound > 0.5 + 4 * error, "a region found by the pilot has more mass than all particles: "
         f"its bound lies {bound:.1f} nats above the evidence"),
        (e.lost > 0, f"no particle is left near {e.lost} of the regions that the pilot found"),
    ]  # fmt: skip
    failed = [sentence for wrong, sentence in reasons if wrong]
    if failed:
        return False, f"do not trust these draws: {'; '.join(failed)}", checks
    sentence = (
        f"all checks passed: {islands} independent islands agree (worth {ess:,.0f} draws, log "
        f"evidence +- {error:.3f}) and further moves do not shift them"
    )
    return True, sentence, checks


def worth(states: list[State], islands: int) -> float:
    """How many independent draws all are worth, going by how much islands differ: on average."""
    share = 1 / worth_each(states, islands)
    return float(1 / share.mean())


def worth_each(states: list[State], islands: int) -> Tensor:
    """Draws that each coordinate, its distance from the center and the log-density are worth.

    With R islands of variance W whose means have the variance B, a mean over all of them has the
    error of R W / B independent draws. On ranks, so that heavy tails do not decide.
    """
    z = torch.cat([state.z for state in states])
    value = torch.cat([evaluated(state) for state in states])
    f = torch.cat([z, (z - z.median(0).values).abs(), value[:, None]], 1)
    column = f.T.contiguous()
    ordered = column.sort(1).values
    # The middle of equal values, so that a log-density that is constant tells islands not apart.
    below = torch.searchsorted(ordered, column)
    ranks = (below + torch.searchsorted(ordered, column, right=True)).T.to(f.dtype) / (2 * len(f))
    parts = ranks.view(len(states), islands, -1, f.shape[1]).transpose(0, 1).flatten(1, 2)
    between, within = parts.mean(1).var(0), parts.var(1).mean(0)
    each = islands * within / between.clamp(min=1e-300)
    return torch.where(within > 0, each, float(len(f))).clamp(max=float(len(f)))


def tail_index(z: Tensor) -> float:
    """The largest of the coordinates' tail indices: P(|z_j| > r) falls as r^(-1/k).

    Hill's estimate from the 2 % farthest points ``(n, d)``. Gaussian tails have k near 0, Cauchy's
    k = 1, and the larger k, the nearer the density is to having no integral.
    """
    size = (z - z.median(0).values).abs()
    top = size.topk(max(10, len(z) // 50), 0).values.clamp(min=1e-300).log()
    return float((top - top[-1]).mean(0).max())


def evaluated(state: State) -> Tensor:
    """The log-densities that a moved state holds, ``(B,)``."""
    assert state.log_prob is not None
    return state.log_prob


def lost_paths(found: Pilot, annealed: Annealed) -> int:
    """Paths with a fair share of the mass, going by their ELBO, that no particle is near to."""
    z, count = annealed.state.z, 0
    d = z.shape[1]
    radius = d + 5 * math.sqrt(2 * d) + 10
    fair = found.paths.elbo > annealed.log_evidence - 4
    for mean, factor in zip(found.paths.mean[fair], found.paths.factor[fair], strict=True):
        w = torch.linalg.solve_triangular(factor, (z - mean).T, upper=False)
        count += int(float(w.square().sum(0).min()) > radius)
    return count


def _shift(before: Tensor, after: Tensor) -> tuple[float, float]:
    """The largest shift of a median in units of spread, and the largest log-growth of a spread."""
    some = slice(None, None, max(1, len(before) // 4096))
    levels = before.new_tensor([0.05, 0.25, 0.5, 0.75, 0.95])
    a, b = before[some].quantile(levels, 0), after[some].quantile(levels, 0)
    spread = (a[3] - a[1]).clamp(min=1e-300) / 1.349
    grown = ((b[4] - b[0]).clamp(min=1e-300) / (a[4] - a[0]).clamp(min=1e-300)).log()
    return float(((b[2] - a[2]).abs() / spread).max()), float(grown.max())
