"""`damc.sample` on densities with known draws and on posteriors of real data, beside plain MCMC."""

from __future__ import annotations

__all__ = ["plain", "posteriors", "rows"]

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import damc
from benchmarks.posteriors import POSTERIORS, load
from benchmarks.targets import TARGETS, Known
from damc.supports import as_support

CHAINS = 500


def rows(seed: int = 0, names: list[str] | None = None) -> list[dict[str, Any]]:
    """Every known density: damc.sample, MALA and HMC of as many gradients, and exact draws."""
    table = []
    for known in TARGETS:
        if names is None or known.name in names:
            table += _compared(known, seed)
    return table


def posteriors(
    seed: int = 0, names: list[str] | None = None, minutes: float = 5.0
) -> list[dict[str, Any]]:
    """Posteriors of real data against the summaries of their reference draws."""
    table = []
    for name in names or [name for name in POSTERIORS if name != "lgcp_pines"]:
        model = load(name)
        start = time.perf_counter()
        draws = damc.sample(model.log_prob, model.dim, seed=seed, minutes=minutes)
        seconds = time.perf_counter() - start
        z = model.parameters(draws.samples)
        keys = ("mean", "sd", "q05", "q95")
        reference = torch.tensor([[v[k] for k in keys] for v in model.reference.values()])
        errors = {}
        if model.by_log:  # no variance: by the quantiles' logs
            found = _quantiles(z, draws.log_weights)
            worst = (found.log() - reference[:, 2:].T.log()).abs().max()
            errors = {"log-quantile error": round(float(worst), 3)}
        elif len(reference):
            errors = _errors(z, draws.log_weights, *reference.double().T)
        gap = model.log_evidence
        table.append(
            {
                "posterior": name,
                "d": model.dim,
                **errors,
                "log evidence": f"{draws.log_evidence:.3f} +- {draws.log_evidence_error:.3f}",
                "known": "" if gap is None else gap,
                "ESS": round(draws.ess),
                "gradient calls": f"{draws.gradient_calls:,}",
                "seconds": round(seconds, 1),
                "trusted": draws.trusted,
            }
        )
    return table


def plain(kernel: damc.Kernel, known: Known, gradients: int, seed: int, n: int = 10_000) -> Tensor:
    """Draws of plain chains from N(0, I) with that many gradients; the first half is dropped."""
    support = as_support(known.support, known.dim)
    size = known.dim if support is None else support.free
    target = known.log_prob if support is None else support.pull_back(known.log_prob)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(CHAINS, size, dtype=torch.float64, generator=generator)
    each = kernel.leapfrogs if isinstance(kernel, damc.HMC) else 1
    steps = max(40, gradients // (CHAINS * each))
    state, _ = kernel.run(start, target, generator, steps=steps // 2)
    thin = max(1, (steps - steps // 2) // (n // CHAINS))
    _, info = kernel.run(state, target, generator, steps=thin * (n // CHAINS), thin=thin)
    assert info.trace is not None
    u = info.trace.flatten(0, 1)
    return u if support is None else support(u)[0]


def _compared(known: Known, seed: int) -> list[dict[str, Any]]:
    many = known.draw(400_000, torch.Generator().manual_seed(1))
    truth = (many.mean(0), many.std(0), *_quantiles(many, torch.zeros(len(many))))

    def row(what: str, z: Tensor, log_weights: Tensor, **more: Any) -> dict[str, Any]:
        found = {
            "target": known.name,
            "sampler": what,
            **_errors(z, log_weights, *truth),
            "modes": _modes(known, z, log_weights),
        }
        blank = {"log Z error": "", "gradient calls": "", "seconds": "", "trusted": ""}
        return {**found, **blank, **more}

    start = time.perf_counter()
    draws = damc.sample(known.log_prob, known.dim, support=known.support, seed=seed)
    seconds = time.perf_counter() - start
    error = draws.log_evidence - known.log_evidence
    table = [
        row(
            "damc.sample",
            draws.samples,
            draws.log_weights,
            **{
                "log Z error": f"{error:+.3f} +- {draws.log_evidence_error:.3f}",
                "gradient calls": f"{draws.gradient_calls:,}",
                "seconds": round(seconds, 1),
                "trusted": draws.trusted,
            },
        )
    ]
    kernels: list[tuple[str, Callable[[], damc.Kernel]]] = [
        ("MALA", lambda: damc.MALA(0.1)),
        ("HMC", lambda: damc.HMC(0.1)),
    ]
    for what, make in kernels:
        start = time.perf_counter()
        z = plain(make(), known, draws.gradient_calls, seed)
        spent = {
            "gradient calls": f"{draws.gradient_calls:,}",
            "seconds": round(time.perf_counter() - start, 1),
        }
        table.append(row(f"{what}, {CHAINS} chains from N(0, I)", z, torch.zeros(len(z)), **spent))
    exact = known.draw(10_000, torch.Generator().manual_seed(seed))
    return [*table, row("exact draws", exact, torch.zeros(len(exact)))]


def _errors(
    z: Tensor, log_weights: Tensor, mean: Tensor, sd: Tensor, low: Tensor, high: Tensor
) -> dict[str, float]:
    """The largest error over the coordinates of mean, sd and 5 and 95 % quantiles."""
    w = torch.softmax(log_weights.to(z), 0)[:, None]
    m = (w * z).sum(0)
    s = (w * (z - m).square()).sum(0).sqrt()
    q = _quantiles(z, log_weights)
    return {
        "mean error / sd": round(float(((m - mean) / sd).abs().max()), 3),
        "sd error": round(float((s / sd - 1).abs().max()), 3),
        "quantile error / sd": round(
            float(torch.stack([(q[0] - low) / sd, (q[1] - high) / sd]).abs().max()), 3
        ),
    }


def _quantiles(z: Tensor, log_weights: Tensor) -> Tensor:
    """Weighted 5 and 95 % quantiles of every coordinate, ``(2, d)``."""
    value, order = z.sort(0)
    cumulative = torch.softmax(log_weights.to(z), 0)[order].cumsum(0).T.contiguous()
    level = torch.tensor([0.05, 0.95], dtype=z.dtype).expand(z.shape[1], 2).contiguous()
    index = torch.searchsorted(cumulative, level).clamp(max=len(z) - 1).T
    return value.gather(0, index)


def _modes(known: Known, z: Tensor, log_weights: Tensor) -> str:
    if known.modes is None or known.masses is None:
        return ""
    w, found = torch.softmax(log_weights.to(z), 0), known.modes(z)
    if found.ndim == 1:
        masses = torch.zeros_like(known.masses).index_add(0, found, w)
        tv = float((masses - known.masses).abs().sum() / 2)
        return f"{int((masses > 0).sum())} of {len(masses)}, TV {tv:.3f}"
    wells = (w[:, None] * found).sum(0)
    worst = float((wells - known.masses).abs().max())
    return (
        f"right wells {float(wells.mean()):.4f} ({float(known.masses[0]):.4f}), worst {worst:.3f}"
    )
