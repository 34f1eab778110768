"""May these draws be trusted? Checks that catch bad scale, poor mixing and lost modes."""

from __future__ import annotations

__all__ = [
    "Evidence",
    "enough",
    "evaluated",
    "far_paths",
    "lost_paths",
    "shift",
    "shift_noise",
    "verdict",
    "worth",
    "worth_each",
]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import LogProb
from damc.kernels.base import State
from damc.kernels.mover import Budget
from damc.kernels.pilot import Paths, Pilot
from damc.kernels.reference import Reference
from damc.kernels.smc import Annealed
from damc.kernels.tails import tail_index
from damc.sampling.jumps import Jumps
from damc.sampling.shells import FALLS
from damc.sampling.supports import Support
from damc.sampling.weights import Weights

_COMPARED = 4096  # points whose ranks and quantiles are compared
_RANKS = 0.5 / math.sqrt(math.pi)  # how a shift of a Gaussian by one sd moves ranks, to first order
_INFINITE = 1e-3  # the share of points that may be +inf: poles are hit by none, or by few
_ROUNDING = 0.25  # nats
_FAIR = 0.018  # the share of the mass from which on a region must not be missed
_SHORT = 0.2  # of the draws that a region must hold, those without which it counts as missed


@dataclass(frozen=True)
class Evidence:
    """All that a verdict looks at.

    Attributes:
        target: the log-density on R^k.
        support: leads from R^k to the density's support.
        found: by the pilot and by hunting.
        first: the annealing from the pilot's reference.
        reference: of the later ones.
        runs: the later ones.
        annealed: those joined.
        jumps: that particles made afterwards, if islands differed.
        second: the particles before the last sweeps and their evidence: after jumps, that of the
            bridge between them and their proposal.
        states: the particles after each sweep of moves that followed.
        acceptance: of the last sweep.
        lost: paths, good ones, that too few particles are near to.
        tail_slope: d log m / d log r far away; see `damc.sampling.shells`.
        pole_slope: the same close to the highest peaks.
        budget: of the last call.
        gradient_calls: of all calls.
        calls: how many calls of `damc.sample` this is the result of.
        notes: what would have been done with more time, and where the log-density raised.
        infinite: the share of points at which the log-density was +inf.
        precision: relative, of the log-density's values.
        tail_error: the error of log Z by tails that particles do not reach.
    """

    target: LogProb
    support: Support | None
    found: Pilot
    first: Annealed
    reference: Reference
    runs: list[Annealed]
    annealed: Annealed
    jumps: Jumps | None
    second: Annealed
    states: list[State]
    acceptance: float
    lost: int
    tail_slope: float
    pole_slope: float
    budget: Budget
    gradient_calls: int
    calls: int = 1
    notes: tuple[str, ...] = ()
    infinite: float = 0.0
    precision: float = 0.0
    tail_error: float = 0.0

    @property
    def log_evidence_error(self) -> float:
        """The standard error of log Z: what islands differ by, and what all of them miss."""
        return math.hypot(self.second.log_evidence_error, self.tail_error)

    @property
    def island_weights(self) -> Tensor:
        """log-weight of each island ``(R,)``, of mean weight 1: its evidence, unless jumps made its
        particles forget how they came there."""
        each = self.second.island_evidence
        return torch.zeros_like(each) if self.jumps else each - self.second.log_evidence


def verdict(e: Evidence, weights: Weights | None = None) -> tuple[bool, str, dict[str, float]]:
    """Whether every check passed, one sentence that says why or why not, and the figures.

    Args:
        e: what was found.
        weights: those of an amortized sampler's draws, if there is one.
    """
    checks = _figures(e)
    reasons = _reasons(e, checks)
    error = e.log_evidence_error
    if weights is not None:
        reasons += of_weights(weights, e.second.log_evidence, error, checks)
    failed = [sentence for wrong, sentence in reasons if wrong]
    if failed:
        return False, f"do not trust these draws: {'; '.join((*failed, *e.notes))}", checks
    islands = len(e.second.island_evidence)
    sentence = (
        f"all checks passed: {islands} independent islands agree (worth {checks['ess']:,.0f} "
        f"draws, log evidence +- {error:.3f}) and further moves do not shift them"
    )
    return True, "; ".join((sentence, *e.notes)), checks


def _figures(e: Evidence) -> dict[str, float]:
    """What is measured of the draws, by name."""
    before, after = e.second.state, e.states[-1]
    moved, grown = shift(before.z, after.z)
    each = worth_each(e.states, len(e.second.island_evidence))
    figures = {
        "temperatures": float(len(e.second.temperatures)),
        "particles": float(len(after.z)),
        "acceptance": e.acceptance,
        "shift": moved,
        "growth": grown,
        "still": float((before.z == after.z).all(1).double().mean()),
        "ess": float(1 / (1 / each).mean()),
        "least ess": float(each.min()),
        "evidence gap": abs(e.second.log_evidence - e.first.log_evidence),
        "elbo above evidence": float(e.found.paths.elbo.max()) - e.second.log_evidence,
        "lost paths": float(e.lost),
        "tail": tail_index(torch.cat([state.z for state in e.states])),
        "tail slope": e.tail_slope,
        "pole slope": e.pole_slope,
        "endless": _endless(e.support, after.z),
        "infinite": e.infinite,
        "rounding": e.precision * float(evaluated(after).abs().median()),
    }
    if e.jumps is not None:
        between = e.second.log_evidence - e.annealed.log_evidence
        figures |= {"jumps": e.jumps.acceptance, "bridge above annealing": between}
    return figures


def _reasons(e: Evidence, c: dict[str, float]) -> list[tuple[bool, str]]:
    """Every check: whether it failed, and the sentence that says so.

    Args:
        e: what was found.
        c: its `_figures`.
    """
    count, dim = e.states[-1].z.shape
    ess, error = c["ess"], e.log_evidence_error
    gap, bound, grown = c["evidence gap"], c["elbo above evidence"], c["growth"]
    noise = shift_noise(count, dim, ess)
    between = c.get("bridge above annealing", 0.0)
    allowed = 0.3 + 4 * math.hypot(error, e.annealed.log_evidence_error)
    return [
        (
            not e.second.finished,
            "annealing stopped before it reached the target, for want of budget or because the "
            "target is out of reach of its reference",
        ),
        (e.budget.left <= 0, "the budget ended before all moves were made"),
        (e.tail_slope > FALLS, "the density is improper: far away it falls too slowly to have a "
         f"finite integral (its mass changes as r^{e.tail_slope:.1f} with the distance r)"),
        (e.pole_slope < -FALLS, "the density is unbounded: it has a pole that is too steep to "
         f"have a finite integral (its mass changes as r^{e.pole_slope:.1f} at the distance r)"),
        (c["endless"] > 0.02, f"the density is improper: {c['endless']:.0%} of the draws "
         "lie beyond 1e100, near the end of the numbers that a computer has"),
        (e.infinite > _INFINITE, f"log_prob is +inf at {e.infinite:.1%} of the points where it was "
         "evaluated, and a density is finite"),
        (c["rounding"] > _ROUNDING, "the values of log_prob are so large that they are "
         f"rounded to multiples of {c['rounding']:.2g}: leave out what is constant, or "
         "compute in float64"),
        (grown > 0.25 + noise, "draws spread further the longer they move: the density may be "
         f"improper or unbounded (spread grew {math.exp(grown):.1f}-fold)"),
        (c["tail"] > 1.5, "the tails fall too slowly for the density to have a finite "
         f"integral (tail index {c['tail']:.1f}, at most 1 is safe)"),
        (c["shift"] > 0.1 + noise, f"further moves still shift the draws, by {c['shift']:.2f} sd"),
        (c["still"] > 0.02, f"{c['still']:.0%} of the particles could not be moved"),
        (e.acceptance < 0.2, f"the kernel accepts only {e.acceptance:.0%} of its moves"),
        (error > 0.25, f"independent islands disagree on the evidence, by {error:.2f} nats"),
        (c["least ess"] < 60, "independent islands disagree: a coordinate is worth "
         f"{c['least ess']:.0f} draws"),
        (ess < enough(dim), "independent islands differ too much: the draws are worth "
         f"{ess:.0f}, and {enough(dim):.0f} would be enough"),
        (
            e.first.finished and gap > 0.5 + 4 * math.hypot(error, e.first.log_evidence_error),
            f"two annealings from different references disagree on the evidence, by {gap:.2f}",
        ),
        (abs(between) > allowed, "annealing and particles after jumps disagree on the evidence, by "
         f"{abs(between):.2f}"),
        (bound > 0.5 + 4 * error, "a region found by the pilot has more mass than all particles: "
         f"its bound lies {bound:.1f} nats above the evidence"),
        (e.lost > 0, f"too few particles are left near {e.lost} of the regions that were found"),
    ]  # fmt: skip


def of_weights(
    w: Weights, log_evidence: float, error: float, checks: dict[str, float]
) -> list[tuple[bool, str]]:
    """What the weights of an amortized sampler's draws say about the evidence of annealing.

    Weights too uneven to tell anything say nothing against it.
    """
    between = w.log_evidence - log_evidence
    checks |= {"sampler k-hat": w.k_hat, "sampler ess": w.ess, "sampler evidence gap": between}
    sure = w.k_hat < 0.7 and w.ess > 100
    allowed = 0.3 + 4 * math.hypot(error, w.log_evidence_error)
    return [
        (
            sure and abs(between) > allowed,
            "annealing and the amortized sampler's weights disagree on the evidence, by "
            f"{abs(between):.2f}",
        )
    ]


def _endless(support: Support | None, z: Tensor) -> float:
    """The share of points ``(n, d)`` that lie beyond 1e100 on the support.

    A density such as 1 / x on a half-line is flat in the log of x, in which moves are made, and
    ends only where numbers do.
    """
    x = z if support is None else support(z)[0]
    return float((x.abs() > 1e100).any(1).double().mean())


def enough(dim: int) -> float:
    """How many independent draws tell a joint distribution apart from another by little.

    Each mean and each correlation is off by 1 / sqrt(n), and a classifier that knows m of them sees
    a distance of sqrt(m / n); 16 draws for each of the d (d + 1) / 2 keep it below 1/4. Up to
    1,600, as more is too much to ask where there is one mode.
    """
    return float(min(1600, 8 * dim * (dim + 1)))


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
    ordered, order = f.T.contiguous().sort(1)
    # The middle of equal values, so that a log-density that is constant tells islands not apart.
    below = torch.searchsorted(ordered, ordered)
    middle = (below + torch.searchsorted(ordered, ordered, right=True)).to(f.dtype) / (2 * len(f))
    ranks = torch.empty_like(middle).scatter(1, order, middle).T
    parts = ranks.view(len(states), islands, -1, f.shape[1]).transpose(0, 1).flatten(1, 2)
    between, within = parts.mean(1).var(0), parts.var(1).mean(0)
    each = islands * within / between.clamp(min=1e-300)
    return torch.where(within > 0, each, float(len(f))).clamp(max=float(len(f)))


def evaluated(state: State) -> Tensor:
    """The log-densities that a moved state holds, ``(B,)``."""
    assert state.log_prob is not None
    return state.log_prob


def lost_paths(found: Pilot, annealed: Annealed) -> int:
    """Paths with a fair share of the mass, going by their ELBO, that too few particles are near."""
    return far_paths(found.paths, annealed.state.z, annealed.log_evidence)


def far_paths(paths: Paths, z: Tensor, log_evidence: float) -> int:
    """Paths whose regions hold far fewer of the points ``(n, d)`` than they must.

    By Jensen's inequality a path's ELBO bounds the mass of the region where its Gaussian lies, so
    that region must hold at least the share exp(ELBO - log Z) of the draws.
    """
    d, count = z.shape[1], 0
    radius = d + 5 * math.sqrt(2 * d) + 10
    least = (paths.elbo - log_evidence).clamp(max=0.0).exp()
    fair = least > _FAIR
    for mean, factor, share in zip(paths.mean[fair], paths.factor[fair], least[fair], strict=True):
        w = torch.linalg.solve_triangular(factor, (z - mean).T, upper=False)
        inside = (w.square().sum(0) < radius).to(z.dtype).mean()
        count += int(float(inside) < _SHORT * float(share))
    return count


def shift(before: Tensor, after: Tensor) -> tuple[float, float]:
    """The largest shift of a coordinate in sds, and the largest log-growth of a spread.

    The shift is that of mean ranks, in units of what a shift by one sd does to the ranks of a
    Gaussian. A median may lie between two modes, and tells nothing there.
    """
    some = slice(None, None, max(1, len(before) // _COMPARED))
    before, after = before[some], after[some]
    ordered, other = before.T.contiguous().sort(1).values, after.T.contiguous()
    below = torch.searchsorted(ordered, other) + torch.searchsorted(ordered, other, right=True)
    area = below.to(before.dtype).mean(1) / (2 * len(before))
    levels = before.new_tensor([0.05, 0.95])
    a, b = before.quantile(levels, 0), after.quantile(levels, 0)
    grown = ((b[1] - b[0]).clamp(min=1e-300) / (a[1] - a[0]).clamp(min=1e-300)).log()
    return float((area - 0.5).abs().max()) / _RANKS, float(grown.max())


def shift_noise(n: int, dim: int, ess: float = math.inf) -> float:
    """What `shift` finds of n points of one distribution at most: the largest of d shifts of ranks.

    The mean rank of n points among n others has the standard error 1 / sqrt(6 n), 1.45 / sqrt(n)
    in sds, and the largest of d Gaussian errors is about sqrt(2 log d) of them. A little more is
    allowed, since a bound on growth rests on this, too.
    """
    points = max(1.0, min(n, _COMPARED, ess))
    return 1.25 * math.sqrt(2 / points) * (1.5 + math.sqrt(2 * math.log(2 * dim)))
