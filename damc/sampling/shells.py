"""Does a density have an integral? Its mass in shells, far out and close to its peaks.

Around a center c, in coordinates where the draws are round, the mass at a distance r per unit of
log r is

    m(r) ~ r^d  E_u[p(c + r L u)],    u uniform on the sphere.

A density has a finite integral only if m falls as r grows beyond all bounds, and falls as r goes to
0 at a pole. Chains tell neither: they never get there in finite time. A few hundred evaluations do.
"""

from __future__ import annotations

__all__ = ["FALLS", "OUTER", "OUTER_OF_SUPPORT", "pole", "tail"]

import torch
from torch import Tensor

from damc.density import LogProb
from damc.kernels.mover import Budget, covariance_factor, possible

_DIRECTIONS = 128
OUTER = (3.0, 6.0)
"""log10 of the distances, in sds, between which m must fall."""
OUTER_OF_SUPPORT = (0.7, 1.3)
"""The same where bijections lead to a support: their tails fall fast, and are rounded off soon."""
_INNER = (-7.0, -3.0)  # below which it must fall towards a summit
_ASCENT = 40  # steps to a summit
FALLS = -0.1
"""The largest d log m / d log r, outwards, of what counts as falling; 0 diverges."""


def tail(
    target: LogProb,
    z: Tensor,
    budget: Budget,
    generator: torch.Generator | None = None,
    decades: tuple[float, float] = OUTER,
) -> float:
    """The largest slope d log m / d log r far away from the draws ``(n, d)``.

    Of shells, and of lines along every coordinate, on which r^1 stands for r^d: a density may be
    improper in one coordinate only. -inf where nothing is left.
    """
    d = z.shape[1]
    center = z.median(0).values
    u = _directions(z, generator)
    shells = _slopes(target, center, u, d, decades, budget, together=True)
    spread = z.quantile(0.84, 0) - z.quantile(0.16, 0) if len(z) <= 10_000 else z.std(0)
    some = torch.randperm(d, generator=generator, device=z.device)[:128]
    axes = torch.diag(spread)[some]
    lines = _slopes(target, center, torch.cat([axes, -axes]), 1, decades, budget, together=False)
    return float(torch.cat([shells, lines]).max())


def pole(
    target: LogProb,
    z: Tensor,
    peaks: Tensor,
    budget: Budget,
    generator: torch.Generator | None = None,
) -> float:
    """The smallest slope d log m / d log r towards a summit above any of the peaks ``(k, d)``.

    It is d at a smooth summit, positive at a pole that has an integral, and 0 or negative at one
    that has none.
    """
    slopes = []
    for peak in peaks:
        summit = _summit(target, peak, z, budget, generator)
        moves = _directions(z, generator)
        slopes.append(_slopes(target, summit, moves, z.shape[1], _INNER, budget, together=True))
    found = torch.cat(slopes)
    return float(found[found.isfinite()].min()) if bool(found.isfinite().any()) else float("inf")


def _summit(
    target: LogProb, peak: Tensor, z: Tensor, budget: Budget, generator: torch.Generator | None
) -> Tensor:
    """The highest point that random steps of all sizes lead to; at a pole gradients overshoot."""
    best = possible(target, peak[None])[0][0]
    for _ in range(_ASCENT):
        moves = _directions(z, generator)
        size = torch.rand(len(moves), 1, dtype=z.dtype, generator=generator, device=z.device)
        there = peak + 10 ** (_INNER[0] - 2 - (_INNER[0] - 2) * size) * moves
        value, _ = possible(target, there)
        budget.spend(len(value))
        top = value.argmax()
        peak = torch.where(value[top] > best, there[top], peak)
        best = torch.maximum(best, value[top])
    return peak


def _directions(z: Tensor, generator: torch.Generator | None) -> Tensor:
    """L u of directions u, ``(k, d)``."""
    w = torch.empty(_DIRECTIONS, z.shape[1], dtype=z.dtype, device=z.device)
    w = w.normal_(generator=generator)
    u: Tensor = w / w.norm(dim=1, keepdim=True)
    factor = covariance_factor(z)
    if factor is None:
        return u
    return u * factor if factor.ndim == 1 else u @ factor.mT


def _slopes(
    target: LogProb,
    center: Tensor,
    moves: Tensor,
    power: int,
    decades: tuple[float, float],
    budget: Budget,
    *,
    together: bool,
) -> Tensor:
    """d log m / d log r between two radii: of the mean over all directions, ``(1,)``, or of each,
    ``(k,)``. The density must be there at both ends, else the slope is -inf."""
    radius = 10 ** torch.tensor(decades, dtype=center.dtype, device=center.device)
    points = center + radius[:, None, None] * moves  # (2, k, d)
    value, _ = possible(target, points.flatten(0, 1))
    budget.spend(len(value))
    value = value.view(2, -1)
    if together:
        value = value.logsumexp(1, keepdim=True)
    near, far = value + power * radius.log()[:, None]
    slope = (far - near) / (radius[1] / radius[0]).log()
    there = (far > -torch.inf) & (near > -torch.inf)
    return torch.where(there, slope, -torch.inf)
