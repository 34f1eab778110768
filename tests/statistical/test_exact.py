"""Whole samplers against laws that are known exactly; minutes each."""

from __future__ import annotations

import pytest

from benchmarks import exact

pytestmark = pytest.mark.slow


def test_the_amortizer_learns_all_posteriors_of_a_linear_gaussian_model() -> None:
    row = exact.gaussian_posterior(seed=1)
    assert row["value"] <= 0.55
    # Power: a sampler that was hardly trained is told apart.
    assert exact.gaussian_posterior(seed=1, iterations=15, n=2000)["value"] > 0.6


def test_the_amortizer_finds_eight_modes_and_their_masses() -> None:
    assert exact.mixture(seed=1)["value"] <= 0.1
    assert exact.mixture(seed=1, iterations=2)["value"] > 0.1
