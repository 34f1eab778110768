"""Posteriors of real data: draws against the summaries of published reference draws."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import damc
from benchmarks.posteriors import DATA, POSTERIORS, load
from benchmarks.posteriors.mixtures import _forward
from damc.density import value_and_grad


def errors(name: str, more: object = None) -> tuple[float, float, damc.Draws]:
    """The largest errors of means and sds, in units of the reference's sd."""
    model = load(name)

    def log_prob(u: Tensor) -> Tensor:
        value = model.log_prob(u)
        return value if more is None else value + more(model.parameters(u))  # type: ignore[operator]

    draws = damc.sample(log_prob, model.dim, n=4000)
    z = model.parameters(draws.samples)
    mean, sd = (
        torch.tensor([v[k] for v in model.reference.values()], dtype=z.dtype)
        for k in ("mean", "sd")
    )
    return (
        float(((z.mean(0) - mean) / sd).abs().max()),
        float((z.std(0) / sd - 1).abs().max()),
        draws,
    )


@pytest.mark.parametrize(
    "name",
    [
        "earnings-earn_height",
        "eight_schools-eight_schools_noncentered",
        "kilpisjarvi_mod-kilpisjarvi",
    ],
)
def test_draws_agree_with_the_reference(name: str) -> None:
    mean, sd, draws = errors(name)
    assert draws.trusted and mean < 0.1 and sd < 0.1


def test_a_wrong_prior_is_found_out() -> None:
    """Eight schools with mu ~ N(0, 3) instead of N(0, 5)."""
    name = "eight_schools-eight_schools_noncentered"
    mean, _, _ = errors(name, lambda x: x[:, 8].square() * (1 / 50 - 1 / 18))
    assert mean > 0.2


def test_the_forward_recursion_is_the_sequential_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (2, 3, 8, 13):
        emission = torch.randn(5, length, 2, dtype=torch.float64, generator=generator)
        stay, back = torch.randn(2, 5, dtype=torch.float64, generator=generator)
        a = torch.stack([torch.sigmoid(stay), torch.sigmoid(-stay)], 1)
        b = torch.stack([torch.sigmoid(back), torch.sigmoid(-back)], 1)
        g = emission[:, 0].exp()
        for t in range(1, length):
            g = emission[:, t].exp() * (g[:, :1] * a + g[:, 1:] * b)
        found = _forward(emission.permute(1, 2, 0), stay, back)
        torch.testing.assert_close(found, g.sum(1).log())


@pytest.mark.parametrize("name", [name for name in POSTERIORS if name != "lgcp_pines"])
def test_densities_are_finite_and_smooth_around_zero(name: str) -> None:
    model = load(name)
    generator = torch.Generator().manual_seed(0)
    u = 0.3 * torch.randn(4, model.dim, dtype=torch.float64, generator=generator)
    value, grad = value_and_grad(model.log_prob, u)
    step = 1e-5 * torch.randn(4, model.dim, dtype=torch.float64, generator=generator)
    change = (model.log_prob(u + step) - model.log_prob(u - step)) / 2
    assert value.shape == (4,) and bool(value.isfinite().all())
    torch.testing.assert_close(change, (grad * step).sum(1), rtol=1e-3, atol=1e-6)
    assert model.parameters(u).shape == (4, max(len(model.reference), model.dim))


def test_the_steps_of_differential_equations_are_short_enough() -> None:
    """Against scipy's solver, also where the drug's level leaves 0 within a thin layer."""
    name = "one_comp_mm_elim_abs-one_comp_mm_elim_abs"
    d = json.loads((DATA / f"{name}.json").read_text())["data"]
    u = torch.tensor(
        [[-0.28, -0.13, -0.08, -2.06], [-0.4, -6.0, -0.3, -2.1], [0.1, 3.0, 2.0, -1.8]]
    )
    for row, found in zip(u.double(), load(name).log_prob(u.double()), strict=True):
        ka, km, vm, sigma = row.exp().tolist()

        def field(t: float, c: float, ka: float = ka, km: float = km, vm: float = vm) -> float:
            return d["D"] * ka / d["V"] * math.exp(-ka * t) - vm / d["V"] * c / (km + c)

        solved = solve_ivp(field, (d["t0"], d["times"][-1]), [0.0], "LSODA", d["times"],
                           rtol=1e-9, atol=1e-11).y[0]  # fmt: skip
        seen = np.log(np.array(d["C_hat"]))
        value = -len(seen) * math.log(sigma) - ((seen - np.log(solved)) ** 2).sum() / 2 / sigma**2
        value += sum(row.tolist()) - sum(math.log1p(x * x) for x in (ka, km, vm, sigma))
        assert abs(float(found) - value) < 2e-3
