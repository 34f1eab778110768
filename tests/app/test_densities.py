"""The Density tab: an exact grid, and samples that agree with it."""

from __future__ import annotations

import math

import pytest
import torch

from damc.app import densities
from damc.app.densities import exact_grid, explore
from damc.app.expressions import parse
from damc.app.jobs import Job
from damc.app.pictures import density_panels
from damc.app.words import density_table
from damc.errors import BadInput, Diverged


def test_the_grid_of_a_gaussian_has_its_evidence_and_moments() -> None:
    log_prob = parse("-(x - 3)^2/2 - (y + 1)^2/8")
    around = torch.tensor([3.0, -1.0]) + torch.randn(
        500, 2, generator=torch.Generator().manual_seed(0)
    )
    grid = exact_grid(log_prob, around)
    assert grid.complete
    assert grid.log_evidence == pytest.approx(math.log(4 * math.pi), abs=2e-3)
    z = grid.sample(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(z.mean(0), torch.tensor([3.0, -1.0]).double(), atol=0.06, rtol=0)
    torch.testing.assert_close(z.std(0), torch.tensor([1.0, 2.0]).double(), atol=0.05, rtol=0)


def test_the_distance_tells_right_points_from_wrong_ones() -> None:
    g = torch.Generator().manual_seed(0)
    grid = exact_grid(parse("-x^2/2 - y^2/2"), torch.randn(500, 2, generator=g))
    right = torch.randn(4000, 2, generator=g)
    assert grid.distance(right) < 0.08
    assert grid.distance(right + 1) > 0.3
    assert grid.distance(right + 100) == pytest.approx(1, abs=1e-6)


def test_a_box_that_cannot_hold_the_density_is_not_complete() -> None:
    assert not exact_grid(parse("-0.0000001*(x^2 + y^2)"), torch.randn(100, 2)).complete


def test_a_density_of_nothing_is_refused() -> None:
    with pytest.raises(Diverged, match="is 0, or not a number"):
        exact_grid(parse("log(-x^2 - 1)"), torch.randn(100, 2))


def test_exploring_compares_all_ways_with_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(densities, "_ITERATIONS", 8)
    text = "logsumexp(-(x-2)^2 - y^2, -(x+2)^2 - y^2)"
    seen = list(Job().watch(lambda job: explore(text, 0, job)))
    last = seen[-1]
    ways = ["exact draws", "annealing", "chains", "amortized sampler", "damc.sample"]
    assert list(last.panels) == ways
    shares = [round(s.progress, 6) for s in seen]
    assert shares == sorted(shares) and shares[-1] == 1
    assert last.grid.log_evidence == pytest.approx(math.log(2 * math.pi), abs=5e-3)
    assert last.draws is not None and last.draws.trusted
    error = abs(last.draws.log_evidence - last.grid.log_evidence)
    assert error < 4 * last.draws.log_evidence_error + 0.01
    for way in ("annealing", "damc.sample"):
        assert last.panels[way].distance < 0.15
    assert density_panels(last).size == (1000, 660)
    words = density_table(last)
    assert "Trusted: all checks passed" in words and "log evidence on the grid: 1.8" in words


@pytest.mark.parametrize(("text", "seed"), [("x", -1), ("import os", 0)])
def test_bad_input_is_refused_before_anything_is_computed(text: str, seed: int) -> None:
    with pytest.raises(BadInput):
        explore(text, seed, Job())
