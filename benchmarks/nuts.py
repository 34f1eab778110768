"""NUTS of NumPyro on the same densities: what a statistician would use instead of damc.sample.

NumPyro and JAX are no dependencies of damc: ``pip install numpyro`` for this benchmark. Densities
are written once more in JAX, since calls into torch would dominate the seconds, and compared with
torch's at random points before anything is measured.
"""

from __future__ import annotations

__all__ = ["NAMES", "rows"]

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import damc
from benchmarks.densities import errors_of, modes_of, truth_of
from benchmarks.posteriors import DATA, load
from benchmarks.targets import TARGETS, Known, gmm40_means

CHAINS, WARM_UP, DRAWS = 4, 1000, 1000  # Stan's defaults
MOST = 256  # chains, where they get as many gradients as damc.sample
NAMES = (
    "N(50, 10^2), 2-D",
    "correlation 0.999, 5-D",
    "Funnel-10",
    "GMM-40",
    "Many-Well-32",
    "eight_schools-eight_schools_noncentered",
    "kilpisjarvi_mod-kilpisjarvi",
    "nes1980-nes",
)
Density = Callable[[Any], Any]  # of one point (d,), in JAX


def rows(seeds: Sequence[int] = (0,), names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """damc.sample, NUTS with Stan's defaults, and NUTS with chains for as many gradients.

    Seconds are those of the CPU, compilation included.
    """
    return [row for name in names or NAMES for seed in seeds for row in _compared(name, seed)]


def _compared(name: str, seed: int) -> list[dict[str, Any]]:
    known = next((known for known in TARGETS if known.name == name), None)
    model = known or load(name)
    if known is not None:
        truth, judged = truth_of(known), known.judged or known.dim
    else:
        values = [[v[k] for k in ("mean", "sd", "q05", "q95")] for v in model.reference.values()]
        truth, judged = torch.tensor(values).double().T, len(values)

    def row(what: str, z: Tensor, log_weights: Tensor, **more: Any) -> dict[str, Any]:
        z = z if known is not None else model.parameters(z)
        return {
            "target": name,
            "seed": seed,
            "sampler": what,
            **errors_of(z[:, :judged], log_weights, *truth),
            "modes": "" if known is None else modes_of(known, z, log_weights),
            **more,
        }

    start = time.process_time()
    draws = damc.sample(model.log_prob, model.dim, seed=seed)
    spent = time.process_time() - start
    word = "trusted" if draws.trusted else "refused"
    more = _more(draws.ess, draws.gradient_calls, spent, word)
    table = [row("damc.sample", draws.samples, draws.log_weights, **more)]
    density = _density(model, name)
    chains = CHAINS
    for _ in range(2):
        start = time.process_time()
        z, calls = nuts(density, model.dim, chains, seed)
        spent = time.process_time() - start
        r_hat, ess = _diagnosed(z)
        flat = z.flatten(0, 1)
        flat = flat[:: max(1, len(flat) // 100_000)]
        more = _more(ess, calls, spent, f"R-hat {r_hat:.2f}")
        what = f"NUTS, {chains} chains of {WARM_UP} + {DRAWS}"
        table.append(row(what, flat, torch.zeros(len(flat)), **more))
        chains = min(MOST, math.ceil(chains * draws.gradient_calls / calls))
        if chains <= CHAINS:
            break
    return table


def _more(ess: float, calls: int, seconds: float, word: str) -> dict[str, Any]:
    return {
        "ESS": round(ess),
        "gradient calls": f"{calls:,}",
        "seconds": round(seconds, 1),
        "its own word": word,
    }


def nuts(density: Density, dim: int, chains: int, seed: int) -> tuple[Tensor, int]:
    """Draws ``(chains, draws, d)`` from uniform starts in (-2, 2), as Stan's, and gradients."""
    jax, _ = _jax()
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda z: -density(z))
    run = MCMC(
        kernel,
        num_warmup=WARM_UP,
        num_samples=DRAWS,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    starts = np.random.default_rng(seed).uniform(-2, 2, (chains, dim))
    key, fields = jax.random.PRNGKey(seed), ("num_steps",)
    run.warmup(key, init_params=starts, extra_fields=fields, collect_warmup=True)
    calls = int(run.get_extra_fields()["num_steps"].sum())
    run.run(key, extra_fields=fields)
    calls += int(run.get_extra_fields()["num_steps"].sum())
    return torch.tensor(np.asarray(run.get_samples(group_by_chain=True))), calls


def _diagnosed(z: Tensor) -> tuple[float, float]:
    """The largest split R-hat over coordinates, and the smallest effective sample size."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    found = z.numpy()
    return float(split_gelman_rubin(found).max()), float(effective_sample_size(found).min())


def _jax() -> tuple[Any, Any]:
    try:
        import jax
        import jax.numpy
        import numpyro  # noqa: F401
    except ImportError as error:
        raise SystemExit(
            "benchmark nuts needs numpyro, which is not installed: pip install numpyro"
        ) from error
    jax.config.update("jax_enable_x64", True)
    return jax, jax.numpy


def _density(model: Any, name: str) -> Density:
    """The density in JAX, after a look at whether it is the same, up to a constant."""
    jax, _ = _jax()
    density = _known(name) if isinstance(model, Known) else _posterior(name)
    z = np.random.default_rng(0).normal(size=(8, model.dim))
    difference = np.asarray(jax.vmap(density)(z)) - model.log_prob(torch.tensor(z)).numpy()
    if not np.allclose(difference, difference[0], rtol=1e-8, atol=1e-6):
        raise AssertionError(f"{name} is not the same in JAX and torch: {difference}")
    return density


def _known(name: str) -> Density:
    _, jnp = _jax()
    if name.startswith("N(50"):
        return lambda z: -((z - 50) ** 2).sum() / 200
    if name.startswith("correlation"):
        inverse = np.linalg.inv(np.full((5, 5), 0.999) + 0.001 * np.eye(5))
        return lambda z: -z @ inverse @ z / 2
    if name == "Funnel-10":
        return lambda z: -(z[0] ** 2) / 18 - ((z[1:] ** 2).sum() * jnp.exp(-z[0]) + 9 * z[0]) / 2
    if name == "GMM-40":
        means, s = gmm40_means().numpy(), math.log(1 + math.e)
        from jax.scipy.special import logsumexp

        return lambda z: logsumexp(-((z - means) ** 2).sum(1) / (2 * s * s))
    if name == "Many-Well-32":
        return lambda z: (-(z[::2] ** 4) + 6 * z[::2] ** 2 + z[::2] / 2 - z[1::2] ** 2 / 2).sum()
    raise KeyError(name)


def _posterior(name: str) -> Density:
    _, jnp = _jax()
    d = json.loads((DATA / f"{name}.json").read_text())["data"]
    d = {key: np.asarray(value, dtype=float) for key, value in d.items()}
    if name.startswith("eight_schools"):

        def schools(u: Any) -> Any:
            e, mu, tau = u[:8], u[8], jnp.exp(u[9])
            prior = -(e**2).sum() / 2 - mu**2 / 50 - jnp.log1p((tau / 5) ** 2) + u[9]
            return prior - (((d["y"] - mu - tau * e) / d["sigma"]) ** 2).sum() / 2

        return schools
    if name.startswith("kilpisjarvi"):
        x, y, one = d["x"], d["y"], np.ones_like(d["x"])
        mean = np.array([d["pmualpha"], d["pmubeta"]])
        sd = np.array([d["psalpha"], d["psbeta"]])
        regression = _regression(np.stack([one, x], 1), y)
        return lambda u: regression(u) - (((u[:2] - mean) / sd) ** 2).sum() / 2
    if name.startswith("nes"):
        age = d["age_discrete"]
        columns = [np.ones_like(age), d["real_ideo"], d["race_adj"]]
        columns += [(age == k).astype(float) for k in (2, 3, 4)]
        columns += [d["educ1"], d["gender"], d["income"]]
        return _regression(np.stack(columns, 1), d["partyid7"])
    raise KeyError(name)


def _regression(x: Any, y: Any) -> Density:
    _, jnp = _jax()

    def log_prob(u: Any) -> Any:
        beta, log_sigma = u[:-1], u[-1]
        squares = ((y - x @ beta) ** 2).sum()
        return (1 - len(y)) * log_sigma - squares / 2 * jnp.exp(-2 * log_sigma)

    return log_prob
