"""Supports: densities in unconstrained coordinates keep their mass and their moments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Gamma, LKJCholesky, Uniform, constraints

from damc import MALA, BadInput
from damc.sampling.supports import Support, as_support

D = torch.float64


def grid(dim: int, half: float, points: int) -> tuple[Tensor, float]:
    """Midpoints of a grid over [-half, half]^dim, and the volume of a cell."""
    edge = (torch.arange(points, dtype=D) + 0.5) / points * 2 * half - half
    return torch.cartesian_prod(*[edge] * dim).view(-1, dim), (2 * half / points) ** dim


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=D)


LAWS = {
    "positive": (constraints.positive, 1, lambda x: Gamma(one(2.5), one(2.0)).log_prob(x)[:, 0]),
    "box": (
        constraints.interval(torch.tensor([-3.0, 1.0], dtype=D), torch.tensor([2.0, 1.5], dtype=D)),
        2,
        lambda x: (
            Uniform(torch.tensor([-3.0, 1.0], dtype=D), torch.tensor([2.0, 1.5], dtype=D))
            .log_prob(x)
            .sum(1)
        ),
    ),
    "simplex": (
        constraints.simplex,
        3,
        lambda x: Dirichlet(torch.tensor([2.0, 3.0, 1.5], dtype=D)).log_prob(x),
    ),
    "blocks": (
        [constraints.unit_interval, constraints.less_than(4.0)],
        2,
        lambda x: (
            Beta(one(2.0), one(3.0)).log_prob(x[:, 0])
            + Gamma(one(2.0), one(1.0)).log_prob(4 - x[:, 1])
        ),
    ),
    "correlation": (
        constraints.corr_cholesky,
        4,
        lambda x: LKJCholesky(2, one(1.5)).log_prob(x.view(-1, 2, 2)),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_density_keeps_its_mass(name: str) -> None:
    constraint, dim, log_prob = LAWS[name]
    support = Support(constraint, dim)
    u, cell = grid(support.free, 30.0, 4000 if support.free == 1 else 700)
    mass = support.pull_back(log_prob)(u).exp().sum() * cell
    assert abs(float(mass) - 1) < 2e-3
    without = log_prob(support(u)[0]).exp().sum() * cell  # a forgotten Jacobian shows
    assert abs(float(without) - 1) > 0.02


@pytest.mark.parametrize("name", LAWS)
def test_coordinates_go_back_and_forth(name: str) -> None:
    constraint, dim, _ = LAWS[name]
    support = Support(constraint, dim)
    u = torch.randn(20, support.free, dtype=D, generator=torch.Generator().manual_seed(0))
    x, log_det = support(u)
    assert x.shape == (20, dim) and log_det.shape == (20,)
    torch.testing.assert_close(support.inverse(x), u)


def test_chains_on_a_simplex_have_dirichlet_moments(generator: torch.Generator) -> None:
    constraint, dim, log_prob = LAWS["simplex"]
    support = Support(constraint, dim)
    u = torch.zeros(8000, 2, dtype=D)
    state, _ = MALA(0.5, 150).run(u, support.pull_back(log_prob), generator)
    x, _ = support(state.z)
    exact = Dirichlet(torch.tensor([2.0, 3.0, 1.5], dtype=D))
    error = (x.mean(0) - exact.mean) / (exact.variance.sqrt() / math.sqrt(len(x)))
    assert error.abs().max() < 4
    assert (x.var(0) / exact.variance - 1).abs().max() < 0.08


def test_all_of_space_needs_no_support() -> None:
    assert as_support(None, 3) is None and as_support(constraints.real, 3) is None
    mixed = Support([constraints.real, constraints.positive], 2)
    x, log_det = mixed(torch.tensor([[2.0, 1.0]]))
    torch.testing.assert_close(x, torch.tensor([[2.0, math.e]]))
    torch.testing.assert_close(log_det, torch.tensor([1.0]))
    assert as_support(mixed, 2) is mixed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Support("box", 2), "support must be a constraint"),
        (lambda: Support([constraints.positive], 2), "must cover all 2 coordinates"),
        (lambda: Support(constraints.boolean, 2), "must be continuous"),
        (lambda: Support(constraints.corr_cholesky, 3), r"must have k\^2 coordinates"),
        (lambda: Support(constraints.interval(torch.zeros(3), torch.ones(3)), 2), "must fit 2"),
        (lambda: Support(constraints.simplex, 1), "leaves nothing to sample"),
        (lambda: Support(constraints.lower_cholesky, 4), "one that torch.distributions.biject_to"),
        (lambda: Support(constraints.interval(3.0, -1.0), 2), "lower end below its upper one"),
        (lambda: Support(constraints.interval(1.0, 1.0), 2), "lower end below its upper one"),
        (lambda: Support([(constraints.positive, "2")], 2), "must be .constraint, size."),
        (lambda: Support([(constraints.positive, 3), (constraints.real, -1)], 2), "at least 1"),
        (lambda: as_support(Support(constraints.positive, 2), 3), "must have 3 coordinates"),
    ],
)
def test_bad_input_is_one_clear_sentence(make: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()  # type: ignore[operator]
