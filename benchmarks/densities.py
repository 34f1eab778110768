"""`damc.sample` on densities with known draws and on posteriors of real data, beside plain MCMC."""

from __future__ import annotations

__all__ = ["errors_of", "modes_of", "plain", "posteriors", "rows", "truth_of"]

import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import damc
from benchmarks.posteriors import POSTERIORS, Posterior, load
from benchmarks.targets import TARGETS, Known
from damc.metrics import c2st
from damc.sampling.supports import as_support

CHAINS = 500
Row = Callable[..., dict[str, Any]]


def rows(
    seeds: Sequence[int] = (0,), names: Sequence[str] | None = None, sampler: bool = True
) -> list[dict[str, Any]]:
    """Every known density: damc.sample and its amortized sampler; with the first seed also annealed
    SMC alone, MALA and HMC of as many gradients, and exact draws."""
    table = []
    for known in TARGETS:
        if not names or known.name in names:
            for seed in seeds:
                table += _compared(known, seed, sampler, others=seed == seeds[0])
    return table


def posteriors(
    seeds: Sequence[int] = (0,), names: Sequence[str] | None = None, minutes: float = 5.0
) -> list[dict[str, Any]]:
    """Posteriors of real data against the summaries of their reference draws, and against the
    draws themselves (C2ST) if the folder of them is named by DAMC_POSTERIORS.

    Seconds are those of the CPU; `minutes` are those of the clock, which a busy machine needs more
    of.
    """
    table = []
    chosen = names or [name for name in POSTERIORS if name != "lgcp_pines"]
    for name, seed in itertools.product(chosen, seeds):
        model = load(name)
        start = time.process_time()
        draws = damc.sample(model.log_prob, model.dim, seed=seed, minutes=minutes)
        seconds = time.process_time() - start
        z = model.parameters(draws.samples)
        keys = ("mean", "sd", "q05", "q95")
        reference = torch.tensor([[v[k] for k in keys] for v in model.reference.values()])
        errors = {}
        if model.by_log:  # no variance: by the quantiles' logs
            found = _quantiles(z, draws.log_weights)
            worst = (found.log() - reference[:, 2:].T.log()).abs().max()
            errors = {"log-quantile error": round(float(worst), 3)}
        elif len(reference):
            errors = errors_of(z, draws.log_weights, *reference.double().T)
        gap = model.log_evidence
        table.append(
            {
                "posterior": name,
                "seed": seed,
                "d": model.dim,
                **errors,
                "C2ST": _c2st(model, draws),
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


def _compared(known: Known, seed: int, sampler: bool, others: bool) -> list[dict[str, Any]]:
    truth = truth_of(known)

    def row(what: str, z: Tensor, log_weights: Tensor, **more: Any) -> dict[str, Any]:
        judged = z[:, : known.judged] if known.judged else z
        found = {
            "target": known.name,
            "seed": seed,
            "sampler": what,
            **errors_of(judged, log_weights, *truth),
            "modes": modes_of(known, z, log_weights),
        }
        blank = {"log Z error": "", "ESS": "", "gap": "", "gradient calls": "", "seconds": "",
                 "trusted": ""}  # fmt: skip
        return {**found, **blank, **more}

    start = time.process_time()
    draws = damc.sample(known.log_prob, known.dim, support=known.support, seed=seed)
    seconds = time.process_time() - start
    calls = draws.gradient_calls
    error = draws.log_evidence - known.log_evidence
    table = [
        row(
            "damc.sample",
            draws.samples,
            draws.log_weights,
            **{
                "log Z error": f"{error:+.3f} +- {draws.log_evidence_error:.3f}",
                "ESS": round(draws.ess),
                "gradient calls": f"{calls:,}",
                "seconds": round(seconds, 1),
                "trusted": draws.trusted,
            },
        )
    ]
    if sampler:
        table += _amortized(known, draws, seed, row)
    if not others:
        return table
    table.append(_annealed(known, seed, row))
    kernels: list[tuple[str, damc.Kernel]] = [("MALA", damc.MALA(0.1)), ("HMC", damc.HMC(0.1))]
    for what, kernel in kernels:
        start = time.process_time()
        z = plain(kernel, known, calls, seed)
        spent = {"gradient calls": f"{calls:,}", "seconds": round(time.process_time() - start, 1)}
        table.append(row(f"{what}, {CHAINS} chains from N(0, I)", z, torch.zeros(len(z)), **spent))
    exact = known.draw(10_000, torch.Generator().manual_seed(seed))
    return [*table, row("exact draws", exact, torch.zeros(len(exact)))]


def _amortized(known: Known, draws: damc.Draws, seed: int, row: Row) -> list[dict[str, Any]]:
    """q alone and q with its weights; the gap is EUBO - ELBO."""
    start = time.process_time()
    q = draws.sampler
    seconds = time.process_time() - start
    x, w = q.weighted(4000, generator=torch.Generator().manual_seed(seed))
    error = w.log_evidence - known.log_evidence
    more = {"gap": round(w.eubo - w.elbo, 2), "seconds": round(seconds, 1)}
    weighted = {
        **more,
        "log Z error": f"{error:+.3f} +- {w.log_evidence_error:.3f}",
        "ESS": f"{w.ess:.0f} (k-hat {w.k_hat:.2f})",
    }
    return [
        row("its sampler q alone", x, torch.zeros(len(x)), **more),
        row("q, weighted", x, w.log_weights, **weighted),
    ]


def _annealed(known: Known, seed: int, row: Row) -> dict[str, Any]:
    """`damc.anneal` with its defaults: one annealing, no refinement, no verdict."""
    support = as_support(known.support, known.dim)
    size = known.dim if support is None else support.free
    target = known.log_prob if support is None else support.pull_back(known.log_prob)
    start = time.process_time()
    done = damc.anneal(target, dim=size, generator=torch.Generator().manual_seed(seed))
    error = done.log_evidence - known.log_evidence
    z = done.state.z if support is None else support(done.state.z)[0]
    spent = {
        "log Z error": f"{error:+.3f} +- {done.log_evidence_error:.3f}",
        "gradient calls": f"{done.gradient_calls:,}",
        "seconds": round(time.process_time() - start, 1),
    }
    return row("damc.anneal alone", z, done.log_weights, **spent)


def _c2st(model: Posterior, draws: damc.Draws, n: int = 2000) -> Any:
    """The larger accuracy of two classifiers against reference draws, on standardized parameters;
    empty where there are none."""
    folder = os.environ.get("DAMC_POSTERIORS")
    file = None if folder is None else Path(folder) / model.name / "draws.npz"
    if file is None or not file.exists():
        return ""
    reference = torch.as_tensor(np.load(file)["draws"]).double()
    z = model.parameters(draws.samples)
    if model.by_log:
        z, reference = z.log(), reference.log()
    g = torch.Generator().manual_seed(0)
    a = z[torch.multinomial(draws.log_weights.exp(), n, generator=g)]
    b = reference[torch.randperm(len(reference), generator=g)[:n]]
    center, scale = reference.mean(0), reference.std(0)
    return round(c2st((a - center) / scale, (b - center) / scale, generator=g), 3)


def errors_of(
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


def truth_of(known: Known) -> Tensor:
    """Mean, sd and 5 and 95 % quantiles of every coordinate, ``(4, d)``."""
    if known.truth is not None:
        return known.truth
    many = known.draw(400_000, torch.Generator().manual_seed(1))
    return torch.stack([many.mean(0), many.std(0), *_quantiles(many, torch.zeros(len(many)))])


def _quantiles(z: Tensor, log_weights: Tensor) -> Tensor:
    """Weighted 5 and 95 % quantiles of every coordinate, ``(2, d)``."""
    value, order = z.sort(0)
    cumulative = torch.softmax(log_weights.to(z), 0)[order].cumsum(0).T.contiguous()
    level = torch.tensor([0.05, 0.95], dtype=z.dtype).expand(z.shape[1], 2).contiguous()
    index = torch.searchsorted(cumulative, level).clamp(max=len(z) - 1).T
    return value.gather(0, index)


def modes_of(known: Known, z: Tensor, log_weights: Tensor) -> str:
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
