"""`damc.assess`: may the draws of an amortizer be trusted as draws from a density?

The same questions that `damc.sample` asks of its particles, asked of any diffusion model q: do its
draws move under a kernel that leaves the density invariant, do importance weights bear them out, is
there a region of mass that it never draws from?
"""

from __future__ import annotations

__all__ = ["Assessment", "assess"]

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.density import LogProb, Target
from damc.errors import BadInput
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.hunt import hunt, scattered
from damc.kernels.mover import Budget, Mover, Possible, possible
from damc.randomness import derive_seed
from damc.sampling.amortized import ancestral_paths, standardized
from damc.sampling.check import checked, positive
from damc.sampling.shells import FALLS, tail
from damc.sampling.verdict import far_paths, shift, shift_noise
from damc.sampling.weights import Weights, weights

_MOVES = 30  # under which draws from the density do not change


@dataclass(frozen=True)
class Assessment:
    """How good an amortizer is as a sampler of a density.

    Attributes:
        trusted: whether every check passed.
        report: one sentence that says why, or why not.
        samples: draws from q, ``(n, d)``, float64.
        weights: their importance weights, with k-hat, ESS, log evidence and its bounds.
        checks: the figures behind the verdict.
        gradient_calls: gradients of the log-density, counted for each point.
    """

    trusted: bool
    report: str
    samples: Tensor = field(repr=False)
    weights: Weights = field(repr=False)
    checks: dict[str, float]
    gradient_calls: int


def assess(
    q: Amortizer,
    log_prob: Target,
    n: int = 2000,
    *,
    exact: Tensor | None = None,
    seed: int = 0,
) -> Assessment:
    """Compares the draws of q with the density that it was distilled from.

    Draws and weights are those of ancestral paths with variances of their own; see
    `damc.diffusion.likelihood.AncestralPaths`.

    Args:
        q: an amortizer without a context.
        log_prob: the density, unnormalized, ``(B, d)`` to ``(B,)``.
        n: draws to look at.
        exact: draws from the density, ``(m, d)``, if there are any: they give an upper bound of
            the evidence.
        seed: of everything random.
    """
    if not isinstance(q, Amortizer):
        raise BadInput(f"q must be an Amortizer, got {type(q).__name__}")
    if q.encoder is not None:
        raise BadInput("q must be an amortizer without a context: fix x and assess q(z | x) by it")
    positive(n=n)
    if exact is not None and (exact.ndim != 2 or exact.shape[1] != q.dim):
        raise BadInput(f"exact must have shape (m, {q.dim}), got {tuple(exact.shape)}")
    generator = torch.Generator().manual_seed(derive_seed(seed, "assess"))
    target, _ = checked(log_prob, q.dim, None, generator)
    budget = Budget()
    z, weighed = _weighed(q, target, n, exact, generator)
    budget.spend(n)
    checks = {"k-hat": weighed.k_hat, "ess": weighed.ess, "log evidence": weighed.log_evidence}
    checks |= _moved(target, z, budget, generator)
    checks["lost regions"] = 0.0
    starts = scattered(z, budget, generator)
    if len(starts):
        regions = hunt(target, starts, budget, generator)
        checks["lost regions"] = float(far_paths(regions, z, weighed.log_evidence))
    checks["tail slope"] = tail(target, z, budget, generator)
    failed = _failed(checks, n, q.dim)
    if failed:
        report = f"do not trust this sampler: {'; '.join(failed)}"
    else:
        report = (
            f"all checks passed: {n} draws are worth {weighed.ess:,.0f} (k-hat "
            f"{weighed.k_hat:.2f}, log evidence {weighed.log_evidence:.3f} +- "
            f"{weighed.log_evidence_error:.3f}) and do not move under the kernel"
        )
    return Assessment(not failed, report, z, weighed, checks, budget.spent)


@torch.no_grad()
def _weighed(
    q: Amortizer, target: LogProb, n: int, exact: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, Weights]:
    """Draws of q in float64, and their weights."""
    like = q.sample(min(n, 2000), generator=generator)
    paths = ancestral_paths(q, like, generator)
    v, log_ratio = paths.draw(n, generator)
    z, log_scale = v, v.new_zeros(())
    if q.standardize is not None:
        z = v @ q.standardize.factor.double().mT + q.standardize.location.double()
        log_scale = q.standardize.log_scale().double()
    above = None
    if exact is not None:
        above = target(exact.double()) + paths.noised(standardized(q, exact), generator) + log_scale
    value = target(z)
    value = torch.where(value.isfinite(), value, -math.inf)
    return z, weights(value + log_ratio + log_scale, above)


def _moved(
    target: LogProb, z: Tensor, budget: Budget, generator: torch.Generator
) -> dict[str, float]:
    """What moves of an adapted kernel do to the draws: nothing, if they are draws of the target."""
    value, grad = possible(target, z)
    inside = value > -math.inf
    missing = 1 - float(inside.double().mean())
    if int(inside.sum()) < 2:
        return {"impossible": missing, "acceptance": 0.0, "shift": math.inf, "growth": 0.0,
                "gain": math.inf}  # fmt: skip
    before = State(z[inside], value[inside], grad[inside])
    mover = Mover(HMC(0.3, leapfrogs=5, target_acceptance=None))
    after, accepted = mover.move(before, Possible(target), (_MOVES, _MOVES), budget, generator)
    moved, grown = shift(before.z, after.z)
    assert before.log_prob is not None and after.log_prob is not None
    gain = (after.log_prob.median() - before.log_prob.median()) / after.log_prob.std()
    return {
        "impossible": missing,
        "acceptance": accepted,
        "shift": moved,
        "growth": abs(grown),
        "gain": float(gain),
    }


def _failed(checks: dict[str, float], n: int, dim: int) -> list[str]:
    noise = shift_noise(n, dim)
    c = checks
    reasons = [
        (not c["k-hat"] < 0.7, f"importance weights are too uneven to correct its draws (k-hat "
         f"{c['k-hat']:.2f}, below 0.7 is safe)"),
        (c["ess"] < 0.02 * n, f"{n} draws are worth only {c['ess']:.0f}"),
        (c["impossible"] > 0.01, f"{c['impossible']:.0%} of its draws are impossible"),
        (c["acceptance"] < 0.2, f"the kernel accepts only {c['acceptance']:.0%} of its moves"),
        (c["shift"] > 0.1 + noise, f"the kernel shifts its draws, by {c['shift']:.2f} sd"),
        (c["growth"] > 0.25 + noise, f"the kernel changes their spread, "
         f"{math.exp(c['growth']):.1f}-fold"),
        (abs(c["gain"]) > 0.25 + noise, f"the kernel changes their log-density, by "
         f"{c['gain']:.2f} sd"),
        (c["lost regions"] > 0, f"it never draws from {c['lost regions']:.0f} of the regions that "
         "ascents found"),
        (c["tail slope"] > FALLS, "the density is improper: far away it falls too slowly"),
    ]  # fmt: skip
    return [sentence for wrong, sentence in reasons if wrong]
