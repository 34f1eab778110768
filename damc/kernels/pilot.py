"""Finding where a density is: quasi-Newton paths from starts at many scales.

Each path ascends the log-density by BFGS. At every point its inverse Hessian gives a Gaussian, and
the one with the largest evidence lower bound

    ELBO = E_q[log p(z) - log q(z)] <= log Z

is kept: it lies where the mass is, which need not be near the optimum (Zhang et al., Pathfinder,
2022). The bounds tell good paths from bad ones, and later whether annealing missed one.
"""

from __future__ import annotations

__all__ = ["Paths", "Pilot", "ascend", "distinct", "elbo_of", "pilot"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import LogProb
from damc.errors import Diverged
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover, Possible, possible
from damc.kernels.reference import Reference

SCALES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # of the starts
_FAR = 300.0  # of the farthest of those that lie in the same direction in every coordinate
_DRAWS = 8  # for an ELBO
_ERRORS = 6.0  # by which an ELBO is lowered, if some of its draws are impossible
_IDLE = 10  # rounds without a gain, after which a path has ended
_DENSE = 60  # dimensions up to which points tell a covariance, and no Hessian is computed


@dataclass(frozen=True)
class Paths:
    """The best Gaussian of each of M paths.

    Attributes:
        mean: ``(M, d)``.
        factor: Cholesky factors of their covariances, ``(M, d, d)``.
        elbo: ``(M,)``.
    """

    mean: Tensor
    factor: Tensor
    elbo: Tensor

    def draw(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n points of each, ``(M, n, d)``, and their log-densities, ``(M, n)``."""
        return _draw(self.mean, self.factor, n, generator)


@dataclass(frozen=True)
class Pilot:
    """What was found: the better paths, points moved by a kernel from them, and a reference."""

    paths: Paths
    points: Tensor
    reference: Reference


def pilot(
    target: LogProb,
    dim: int,
    *,
    budget: Budget,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    starts: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Pilot:
    """Ascends from many starts, moves points from where the paths found mass, fits a reference.

    Raises:
        Diverged: if the log-density is finite at no start.
    """
    count = 160 if dim <= _DENSE else 16 if dim <= 200 else 3
    if starts is None:
        starts = _starts(target, dim, count, budget, dtype, device, generator)
    paths = ascend(target, starts, min(600, 200 + 5 * dim), budget, generator)
    if not bool((paths.elbo.max() < math.inf) & (paths.mean.abs().max() < 1e100)):
        raise Diverged(
            "the log-density grows without bound along a path: the density is improper, or it has "
            "a pole"
        )
    worth = paths.elbo > paths.elbo.max() - 20 - dim
    # Afresh, since the largest of many estimates is too large.
    elbo = elbo_of(target, paths.mean[worth], paths.factor[worth], 64, budget, generator)
    paths = distinct(Paths(paths.mean[worth], paths.factor[worth], elbo))
    if dim > _DENSE:
        paths = _with_hessian(target, paths, budget, generator)
    each = max(8, 512 // len(paths.elbo))
    z, log_q = paths.draw(each, generator)
    value, grad = possible(target, z.flatten(0, 1))
    budget.spend(len(value))
    # Truncated importance weights: each path's points move to where it is likely.
    weight = value.view_as(log_q) - log_q
    weight = torch.minimum(weight, weight.logsumexp(1, True) - math.log(each) / 2)
    dead = (weight == -math.inf).all(1, keepdim=True)
    index = torch.multinomial(
        torch.softmax(torch.where(dead, 0.0, weight), 1), each, True, generator=generator
    )
    index = (index + torch.arange(len(index), device=index.device)[:, None] * each).flatten()
    index = index[value[index] > -math.inf]
    if len(index) < 2:
        raise Diverged("no path found a region where the log-density is finite")
    state = State(z.flatten(0, 1)[index], value[index], grad[index])
    if dim > _DENSE:
        best = int(paths.elbo.argmax())
        reference = Reference(paths.mean[best], paths.factor[best], None, None)
        return Pilot(paths, state.z, reference)
    mover = Mover(HMC(0.3, leapfrogs=5, target_acceptance=None))
    for _ in range(3):  # the preconditioner follows the points
        state, _ = mover.move(state, Possible(target), (8, 8), budget, generator)
    found = Reference.fit(state.z)
    if found is None:
        raise Diverged("the points that paths found do not spread in every direction")
    return Pilot(paths, state.z, found)


def ascend(
    target: LogProb,
    z: Tensor,
    iterations: int,
    budget: Budget,
    generator: torch.Generator | None = None,
    *,
    along: bool = True,
) -> Paths:
    """M paths of BFGS at once, from z ``(M, d)``, and the Gaussian of largest ELBO on each.

    Args:
        along: look for it all along a path, and not only at its end, which is cheaper.
    """
    m, d = z.shape
    value, grad = possible(target, z)
    eye = torch.eye(d, dtype=z.dtype, device=z.device)
    # The first step is no longer than 1.
    h = eye / grad.norm(dim=1).clamp(min=1.0)[:, None, None]  # (M, d, d)
    fresh = torch.ones(m, dtype=torch.bool, device=z.device)
    best = Paths(z.clone(), 1e-3 * eye.repeat(m, 1, 1), torch.full_like(value, -math.inf))
    idle = torch.zeros(m, dtype=torch.long, device=z.device)  # rounds without a gain
    for k in range(iterations):
        new, new_value, new_grad = z.clone(), value.clone(), grad.clone()
        on = idle < _IDLE
        new[on], new_value[on], new_grad[on] = _line_search(
            target, z[on], value[on], grad[on], h[on], budget
        )
        moved = new_value > value
        s, y = new - z, grad - new_grad
        sy, yy = (s * y).sum(1), y.square().sum(1)
        curved = moved & (sy > 1e-10 * s.norm(dim=1) * y.norm(dim=1)) & (sy > 0)
        # In place and only where something changes: in many dimensions H is large.
        first = curved & fresh
        if bool(first.any()):
            h[first] = eye * (sy / yy.clamp(min=1e-300))[first, None, None]
        _bfgs(h, s, y, sy, curved)
        # Where the density bends upward steps may be longer; where no step helped, H may be wrong
        # between coordinates.
        if bool((moved & ~curved).any()):
            h[moved & ~curved] *= 4
        if not bool(moved.all()):
            h[~moved] = torch.diag_embed(h[~moved].diagonal(dim1=1, dim2=2).abs().clamp(min=1e-200))
        fresh = fresh & ~curved
        gain = new_value - value
        z, value, grad = new, new_value, new_grad
        if along and ((k < 30 or k % 5 == 0) if d <= _DENSE else k % 50 == 49):
            best = _better(target, best, z, h, budget, generator)
        # A path that found no step starts again with a diagonal H: only twice in a row it ends.
        idle = torch.where(gain < 1e-6, idle + 1, 0)
        idle = torch.where(moved, idle, idle + _IDLE // 2)
        if float((idle >= _IDLE).double().mean()) > 0.8 or budget.left <= 0.7:
            break
    return _better(target, best, z, h, budget, generator)


def _line_search(
    target: LogProb, z: Tensor, value: Tensor, grad: Tensor, h: Tensor, budget: Budget
) -> tuple[Tensor, Tensor, Tensor]:
    """The first of the steps 1, 1/5, 1/25, ... along H grad that ascends enough, for each path."""
    p = (h @ grad[..., None])[..., 0]
    slope = (p * grad).sum(1)
    new, new_value, new_grad = z, value, grad
    done, t = torch.zeros_like(value, dtype=torch.bool), 1.0
    for _ in range(11):
        there = z + t * p
        v, g = possible(target, torch.where(there.isfinite(), there, z))
        budget.spend(len(z))
        take = ~done & (v >= value + 1e-4 * t * slope) & (v > value)
        new = torch.where(take[:, None], there, new)
        new_value, new_grad = (
            torch.where(take, v, new_value),
            torch.where(take[:, None], g, new_grad),
        )
        done |= take
        if bool(done.all()):
            break
        t /= 5
    return new, new_value, new_grad


def _bfgs(h: Tensor, s: Tensor, y: Tensor, sy: Tensor, where: Tensor) -> None:
    """H <- (I - r s y^T) H (I - r y s^T) + r s s^T with r = 1 / s.y, in place, for some paths."""
    on = where[:, None, None]
    r = torch.where(where, 1 / sy.clamp(min=1e-300), 0.0)[:, None, None]
    s, y = torch.where(on, s[..., None], 0.0), torch.where(on, y[..., None], 0.0)
    hy = h @ y
    left = torch.cat([(r * r * (y.mT @ hy) + r) * s - r * hy, -r * s], 2)
    h.baddbmm_(left, torch.cat([s, hy], 2).mT)


def _better(
    target: LogProb,
    best: Paths,
    z: Tensor,
    h: Tensor,
    budget: Budget,
    generator: torch.Generator | None,
) -> Paths:
    """Takes the Gaussian N(z, H) of every path where its ELBO is larger."""
    factor, failed = torch.linalg.cholesky_ex((h + h.mT) / 2)
    usable = (failed == 0) & factor.isfinite().flatten(1).all(1)
    eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    factor = torch.where(usable[:, None, None], factor, 1e-3 * eye)
    elbo = torch.where(usable, elbo_of(target, z, factor, _DRAWS, budget, generator), -math.inf)
    up = elbo > best.elbo
    return Paths(
        torch.where(up[:, None], z, best.mean),
        torch.where(up[:, None, None], factor, best.factor),
        torch.where(up, elbo, best.elbo),
    )


def elbo_of(
    target: LogProb,
    mean: Tensor,
    factor: Tensor,
    draws: int,
    budget: Budget,
    generator: torch.Generator | None,
) -> Tensor:
    """ELBOs of M Gaussians, ``(M,)``, each from so many draws."""
    z, log_q = _draw(mean, factor, draws, generator)
    value, _ = possible(target, z.flatten(0, 1))
    budget.spend(len(value))
    value = value.view_as(log_q)
    inside = value > -math.inf
    count = inside.sum(1)
    # Of the part of q that is possible: log of its share more, as for a truncated q. Where few
    # draws tell that share, it is lowered by its error: of many Gaussians the luckiest would count.
    mean_log = torch.where(inside, value - log_q, 0.0).sum(1) / count.clamp(min=1)
    share = count / draws
    error = ((1 - share) / count.clamp(min=1)).sqrt()
    return torch.where(count > 0, mean_log + share.log() - _ERRORS * error, -math.inf)


def distinct(paths: Paths) -> Paths:
    """Without the paths whose Gaussian holds the center of a clearly better one.

    Those describe a region worse that another path describes well, and mostly far too wide.
    """
    d = paths.mean.shape[1]
    away = (paths.mean[None] - paths.mean[:, None]).mT  # (M, d, M): from each to every other
    w = torch.linalg.solve_triangular(paths.factor, away, upper=False).square().sum(1)
    inside = w < d + 3 * math.sqrt(2 * d)
    better = paths.elbo[None] > paths.elbo[:, None] + 2
    keep = ~(inside & better).any(1)
    return Paths(paths.mean[keep], paths.factor[keep], paths.elbo[keep])


def _draw(
    mean: Tensor, factor: Tensor, n: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    m, d = mean.shape
    w = mean.new_empty(m, n, d).normal_(generator=generator)
    log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(1) + d / 2 * math.log(2 * math.pi)
    return mean[:, None] + w @ factor.mT, -w.square().sum(2) / 2 - log_volume[:, None]


def _starts(
    target: LogProb,
    dim: int,
    count: int,
    budget: Budget,
    dtype: torch.dtype,
    device: torch.device | str,
    generator: torch.Generator | None,
) -> Tensor:
    """Points at several scales where the log-density is finite, ``(count, d)``."""
    tries = 6 * count
    w = torch.empty(tries, dim, dtype=dtype, device=device).normal_(generator=generator)
    scales = torch.tensor(SCALES, dtype=dtype, device=device)
    scale = scales.repeat(tries // len(SCALES))[:, None].repeat(1, dim)
    # Every other start has a scale for each coordinate: a mode may be far in one of them only.
    own = torch.rand(tries // 2, dim, dtype=dtype, generator=generator, device=device)
    scale[::2] = scales[(own * len(SCALES)).long()]
    z = w * scale
    # Some in the same direction in every coordinate: in many dimensions no other start is as far
    # along the diagonal, where symmetric models have their modes.
    u = 2 * torch.rand(tries // 10, 1, dtype=dtype, generator=generator, device=device) - 1
    diagonal = slice(1, 10 * len(u), 10)
    z[diagonal] = u.sign() * (u.abs() * math.log(_FAR)).exp() + 0.3 * w[diagonal]
    value, _ = possible(target, z)
    budget.spend(tries)
    z = z[value > -math.inf]
    if not len(z):
        raise Diverged(
            f"the log-density is finite at none of {tries} points around 0 at scales from "
            f"{SCALES[0]} to {SCALES[-1]}"
        )
    return z[:count] if len(z) >= count else z.repeat(-(-count // len(z)), 1)[:count]


def _with_hessian(
    target: LogProb, paths: Paths, budget: Budget, generator: torch.Generator | None
) -> Paths:
    """The best path with the exact Hessian there, by central differences of the gradient."""
    best = int(paths.elbo.argmax())
    z, d = paths.mean[best], paths.mean.shape[1]
    step = 1e-4 * paths.factor[best].square().sum(1).sqrt()
    rows = []
    for part in torch.split(torch.arange(d, device=z.device), 256):
        move = torch.zeros(len(part), d, dtype=z.dtype, device=z.device)
        move[torch.arange(len(part), device=z.device), part] = step[part]
        grads = possible(target, torch.cat([z + move, z - move]))[1]
        budget.spend(2 * len(part))
        up, down = grads.chunk(2)
        rows.append((down - up) / (2 * step[part])[:, None])
    precision = torch.cat(rows)
    upper, failed = torch.linalg.cholesky_ex((precision + precision.T) / 2)
    if bool(failed):
        return paths
    factor = torch.linalg.cholesky(torch.cholesky_inverse(upper))
    elbo = elbo_of(target, z[None], factor[None], 64, budget, generator)
    if float(elbo) < float(paths.elbo[best]):
        return paths
    return Paths(z[None], factor[None], elbo)
