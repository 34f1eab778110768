"""Is the verdict of `damc.sample` right? Twenty densities that it should sample, twenty hopeless.

A case is wrong if the total variation of the masses of its modes exceeds 0.1, or the C2ST against
exact draws 0.6, or if the density has no integral. No wrong case may be trusted; a right one of a
hopeless density may. The improper densities, the pole and the narrow mode far away, or their like,
were known when the checks were made; the other cases were written down before the first run.
"""

from __future__ import annotations

__all__ = ["CASES", "Case", "rows"]

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import damc
from benchmarks.targets import TARGETS, Draw, _normal
from damc.metrics import c2st

D = torch.float64
Modes = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A density, and whether `damc.sample` ought to manage it.

    Attributes:
        name: of it.
        dim: d.
        log_prob: unnormalized.
        draw: n exact draws; None if the density has no integral.
        hopeless: made so on purpose.
        support: a constraint, if any.
        modes: which mode a point belongs to, ``(B,)``.
        options: of `damc.sample`.
    """

    name: str
    dim: int
    log_prob: Callable[[Tensor], Tensor]
    draw: Draw | None
    hopeless: bool = False
    support: Any = None
    modes: Modes | None = None
    options: dict[str, Any] = field(default_factory=dict)


def rows(seeds: Sequence[int] = (0,), names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Every case with its error, its verdict, and whether the two fit; a summary at the end."""
    table = [
        _judged(case, seed) for case in CASES if not names or case.name in names for seed in seeds
    ]
    wrongly = sum(row["outcome"] == "WRONGLY TRUSTED" for row in table)
    refused = sum(row["outcome"] == "refused, but right" for row in table if row["kind"] == "good")
    summary = f"{len(table)} cases: {wrongly} wrongly trusted, {refused} good ones refused"
    return [*table, {**dict.fromkeys(table[0], ""), "case": summary}]


def _judged(case: Case, seed: int) -> dict[str, Any]:
    start = time.process_time()
    tv = accuracy = math.nan
    try:
        found = damc.sample(
            case.log_prob, case.dim, support=case.support, seed=seed, **case.options
        )
        trusted, report = found.trusted, found.report
    except damc.Diverged as error:
        trusted, report = False, str(error)
    seconds = time.process_time() - start
    wrong = True
    if case.draw is not None and not report.startswith("the log-density"):
        tv, accuracy = _errors(case, found, seed)
        wrong = tv > 0.1 or accuracy > 0.6
    outcome = {
        (True, True): "WRONGLY TRUSTED",
        (True, False): "refused",
        (False, True): "trusted",
        (False, False): "refused, but right",
    }[wrong, trusted]
    return {
        "case": case.name,
        "seed": seed,
        "kind": "hopeless" if case.hopeless else "good",
        "TV of modes": "" if math.isnan(tv) or case.modes is None else round(tv, 3),
        "C2ST": "no integral" if math.isnan(accuracy) else round(accuracy, 3),
        "outcome": outcome,
        "seconds": round(seconds, 1),
        "report": report.removeprefix("do not trust these draws: ")[:90],
    }


def _errors(case: Case, found: damc.Draws, seed: int, n: int = 1000) -> tuple[float, float]:
    assert case.draw is not None
    g = torch.Generator().manual_seed(seed + 100)
    weight = torch.softmax(found.log_weights, 0)
    tv = 0.0
    if case.modes is not None:
        ours, exact = case.modes(found.samples), case.modes(case.draw(100_000, g))
        size = 1 + int(max(ours.max(), exact.max()))
        a = torch.zeros(size, dtype=D).index_add(0, ours, weight)
        tv = float((a - torch.bincount(exact, minlength=size) / len(exact)).abs().sum() / 2)
    z = found.samples[torch.multinomial(weight, n, generator=g)]
    return tv, c2st(*_comparable(z, case.draw(n, g)), generator=g)


def _comparable(z: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """In units of the exact draws' quartiles, with tails drawn in, which classifiers see badly."""
    low, center, high = exact.quantile(exact.new_tensor([0.25, 0.5, 0.75]), 0)
    scale = (high - low).clamp(min=1e-12)
    return tuple(torch.asinh((x - center) / scale) for x in (z, exact))  # type: ignore[return-value]


def _mixture(
    name: str, means: Tensor, sds: Sequence[float], shares: Sequence[float], **more: Any
) -> Case:
    """Round Gaussians; the modes of a point are those of the nearest mean."""
    sd, share = torch.tensor(sds, dtype=D), torch.tensor(shares, dtype=D)
    d = means.shape[1]

    def log_prob(z: Tensor) -> Tensor:
        each = -torch.cdist(z, means).square() / (2 * sd.square()) - d * sd.log() + share.log()
        return torch.logsumexp(each, 1)

    def draw(n: int, g: torch.Generator) -> Tensor:
        which = torch.multinomial(share, n, True, generator=g)
        return means[which] + sd[which, None] * _normal(n, d, g)

    return Case(name, d, log_prob, draw, modes=lambda z: torch.cdist(z, means).argmin(1), **more)


def _at(*points: float, d: int) -> Tensor:
    """Means along the diagonal, so many sds of one coordinate from 0."""
    return torch.tensor(points, dtype=D)[:, None].repeat(1, d)


def _uniforms(n: int, d: int, g: torch.Generator) -> Tensor:
    return torch.rand(n, d, dtype=D, generator=g)


def _banana() -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        w = _normal(n, 2, g)
        return torch.stack([w[:, 0], w[:, 0].square() + 0.5 * w[:, 1]], 1)

    def log_prob(z: Tensor) -> Tensor:
        return -z[:, 0].square() / 2 - 2 * (z[:, 1] - z[:, 0].square()).square()

    return Case("banana, 2-D", 2, log_prob, draw)


def _ring() -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        # The radius has the density r exp(-(r - 5)^2 / 0.18), by rejection from its Gaussian.
        r = 5 + 0.3 * _normal(4 * n, 1, g)[:, 0]
        r = r[_uniforms(4 * n, 1, g)[:, 0] < r / 7][:n]
        angle = 2 * math.pi * _uniforms(len(r), 1, g)[:, 0]
        return r[:, None] * torch.stack([angle.cos(), angle.sin()], 1)

    return Case("ring, 2-D", 2, lambda z: -(z.norm(dim=1) - 5).square() / 0.18, draw)


def _disk() -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        u = _uniforms(n, 2, g)
        angle = 2 * math.pi * u[:, 1]
        return 3 * u[:, :1].sqrt() * torch.stack([angle.cos(), angle.sin()], 1)

    def log_prob(z: Tensor) -> Tensor:
        return torch.where(z.norm(dim=1) < 3, 0 * z.sum(1), -math.inf)

    return Case("uniform disk, -inf outside", 2, log_prob, draw)


def _stairs() -> Case:
    """exp(-floor(|z|)): no gradient anywhere, and jumps."""

    def draw(n: int, g: torch.Generator) -> Tensor:
        u = _uniforms(n, 3, g)
        floor = torch.floor(-u[:, :1].log())
        return (floor + u[:, 1:2]) * torch.sign(u[:, 2:] - 0.5)

    return Case("staircase, 1-D", 1, lambda z: -z.abs().floor().sum(1) + 0 * z.sum(1), draw, True)


def _checkerboard() -> Case:
    """16 cells, far apart, of unequal mass; nothing between them."""
    center = 40 * (torch.cartesian_prod(torch.arange(4), torch.arange(4)).to(D) - 1.5)
    share = torch.arange(1, 17, dtype=D) / 136

    def draw(n: int, g: torch.Generator) -> Tensor:
        return center[torch.multinomial(share, n, True, generator=g)] + _uniforms(n, 2, g) - 0.5

    def log_prob(z: Tensor) -> Tensor:
        inside = ((z[:, None] - center).abs() < 0.5).all(2)
        value = (inside * share).sum(1)
        return torch.where(value > 0, value.clamp(min=1e-9).log() + 0 * z.sum(1), -math.inf)

    return Case(
        "16 separate cells",
        2,
        log_prob,
        draw,
        True,
        modes=lambda z: torch.cdist(z, center).argmin(1),
    )


def _gaussian(name: str, covariance: Tensor, **more: Any) -> Case:
    d = len(covariance)
    factor = torch.linalg.cholesky(covariance)
    inverse = torch.linalg.inv(factor)
    return Case(
        name,
        d,
        lambda z: -(z @ inverse.T).square().sum(1) / 2,
        lambda n, g: _normal(n, d, g) @ factor.T,
        **more,
    )


def _rotated(d: int, log10_sds: float, seed: int = 3) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(_normal(d, d, g)).Q
    sds = torch.logspace(0, log10_sds, d, dtype=D)
    return (q * sds.square()) @ q.T


def _funnel(d: int, sd: float, **more: Any) -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        w = _normal(n, d, g)
        return torch.cat([sd * w[:, :1], torch.exp(sd * w[:, :1] / 2) * w[:, 1:]], 1)

    def log_prob(z: Tensor) -> Tensor:
        x = z[:, 0]
        rest = -(z[:, 1:].square().sum(1) * torch.exp(-x) + (d - 1) * x) / 2
        return -x.square() / (2 * sd * sd) + rest

    return Case(f"funnel, sd {sd:g}, {d}-D", d, log_prob, draw, **more)


def _wells() -> Case:
    """10 independent coordinates, each with modes at -8 (70 %) and 8: 1,024 modes."""
    share = torch.tensor([0.7, 0.3], dtype=D)

    def draw(n: int, g: torch.Generator) -> Tensor:
        which = torch.rand(n, 10, generator=g) < 0.3
        return torch.where(which, 8.0, -8.0) + _normal(n, 10, g)

    def log_prob(z: Tensor) -> Tensor:
        each = torch.stack([-(z + 8).square() / 2, -(z - 8).square() / 2], 2) + share.log()
        return torch.logsumexp(each, 2).sum(1)

    return Case("1,024 modes, 10-D", 10, log_prob, draw, True)


def _heavy(d: int) -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        return torch.tan(math.pi * (_uniforms(n, d, g) - 0.5))

    return Case(f"Cauchy, {d}-D", d, lambda z: -torch.log1p(z.square()).sum(1), draw)


def _laplace() -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        u = _uniforms(n, 3, g) - 0.5
        return -u.sign() * torch.log1p(-2 * u.abs())

    return Case("Laplace, 3-D", 3, lambda z: -z.abs().sum(1), draw)


def _skewed() -> Case:
    def draw(n: int, g: torch.Generator) -> Tensor:
        return (-_uniforms(n, 5, g).log()).log()  # the log of an exponential variable

    return Case("log-exponential, 5-D", 5, lambda z: (z - z.exp()).sum(1), draw)


def _of(name: str, hopeless: bool = False, **options: Any) -> Case:
    """One of the densities of `benchmarks.targets`."""
    known = next(known for known in TARGETS if known.name == name)
    modes = known.modes if known.name == "GMM-40" else None
    return Case(
        name + (", budget too small" if options else ""),
        known.dim,
        known.log_prob,
        known.draw,
        hopeless,
        known.support,
        modes,
        options,
    )


def _improper(name: str, dim: int, log_prob: Callable[[Tensor], Tensor]) -> Case:
    return Case(name, dim, log_prob, None, True)


CASES = [
    *(_of(known.name) for known in TARGETS),
    _gaussian("N(0, 1), 1-D", torch.eye(1, dtype=D)),
    _heavy(1),
    _laplace(),
    _skewed(),
    _banana(),
    _ring(),
    _disk(),
    _mixture("two modes 20 sds apart, 5-D", _at(-4.5, 4.5, d=5), [1, 1], [0.4, 0.6]),
    _mixture("three unequal modes, 2-D", _at(-6, 0, 6, d=2), [1, 0.5, 2], [0.2, 0.3, 0.5]),
    _gaussian("50-D, condition number 1e4", _rotated(50, -2)),
    _mixture("modes 100 sds apart, 1-D", _at(-50, 50, d=1), [1, 1], [0.5, 0.5], hopeless=True),
    _mixture("modes 100 sds apart, 2-D", _at(-35, 35, d=2), [1, 1], [0.3, 0.7], hopeless=True),
    _mixture("modes 100 sds apart, 20-D", _at(-11, 11, d=20), [1, 1], [0.5, 0.5], hopeless=True),
    _mixture("modes 1,000 sds apart, 2-D", _at(-350, 350, d=2), [1, 1], [0.5, 0.5], hopeless=True),
    _mixture("a narrow mode far away, 2-D", _at(0, 25, d=2), [1, 0.1], [0.5, 0.5], hopeless=True),
    _mixture("a needle inside, 2-D", _at(0, 0.5, d=2), [1, 0.005], [0.5, 0.5], hopeless=True),
    _wells(),
    _checkerboard(),
    _stairs(),
    _gaussian("10-D, condition number 1e8", _rotated(10, -4), hopeless=True),
    _funnel(10, 6.0, hopeless=True),
    _of("GMM-40", True, gradients=50_000),
    _of("Many-Well-32", True, gradients=200_000),
    _improper("flat, 2-D", 2, lambda z: 0 * z.sum(1)),
    _improper("flat in one of 3", 3, lambda z: -z[:, :2].square().sum(1) / 2 + 0 * z[:, 2]),
    _improper("1 / (1 + |z|), 1-D", 1, lambda z: -torch.log1p(z.norm(dim=1))),
    _improper("1 / (1 + |z|^2), 2-D", 2, lambda z: -torch.log1p(z.square().sum(1))),
    _improper("exp(|z|)", 2, lambda z: z.norm(dim=1)),
    _improper("a pole |z|^-3, 3-D", 3, lambda z: -3 * z.norm(dim=1).log() - z.square().sum(1) / 2),
    _improper("ridge along a diagonal", 2, lambda z: -(z[:, 0] - z[:, 1]).square() / 2),
]  # fmt: skip
