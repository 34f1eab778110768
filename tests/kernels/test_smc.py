"""Annealed SMC: evidence and masses against closed forms, each with its error bar."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import Tensor

from damc import BadInput, Diverged, Gaussian, anneal
from damc.kernels.mover import Budget
from damc.kernels.smc import joined, log_evidence, resample

D = torch.float64


def test_a_budget_counts_computing_and_not_waiting() -> None:
    busy, clock = Budget(seconds=0.2), Budget(seconds=0.2, clock=True)
    time.sleep(0.25)
    assert busy.elapsed < 0.1 and busy.left > 0.5 and not busy.hurried
    assert clock.elapsed >= 0.25 and clock.left < 0 and clock.hurried
    while busy.left > 0:
        torch.randn(100, 100) @ torch.randn(100, 100)
    assert busy.hurried


def wide(dim: int, scale: float, mean: float = 0.0) -> Gaussian:
    return Gaussian(dim, torch.tensor(scale, dtype=D), mean)


def narrow(z: Tensor) -> Tensor:
    """N((3, -1), diag(1, 0.01)^2) times 7."""
    w = (z - torch.tensor([3.0, -1.0], dtype=D)) / torch.tensor([1.0, 0.01], dtype=D)
    return math.log(7 / (2 * math.pi * 0.01)) - w.square().sum(1) / 2


def two_modes(z: Tensor) -> Tensor:
    """0.8 N(-4, 0.5^2) + 0.2 N(4, 0.25^2) in one dimension, normalized."""
    left = math.log(0.8 / 0.5) - ((z[:, 0] + 4) / 0.5).square() / 2
    right = math.log(0.2 / 0.25) - ((z[:, 0] - 4) / 0.25).square() / 2
    return torch.logaddexp(left, right) - math.log(2 * math.pi) / 2


def test_systematic_resampling_rounds_expected_counts(generator: torch.Generator) -> None:
    log_weights = torch.randn(5, 64, dtype=D, generator=generator)
    log_weights[0, 3] = -math.inf
    index = resample(log_weights, generator)
    expected = 64 * torch.softmax(log_weights, 1)
    for row, counts in zip(index, expected, strict=True):
        taken = torch.bincount(row, minlength=64)
        assert bool(((taken - counts).abs() < 1 + 1e-9).all())
    assert not bool((index[0] == 3).any())


def test_evidence_and_moments_of_a_narrow_gaussian(generator: torch.Generator) -> None:
    found = anneal(narrow, wide(2, 10.0), particles=2048, generator=generator)
    assert found.finished and found.temperatures[-1] == 1
    assert abs(found.log_evidence - math.log(7)) < 4 * found.log_evidence_error
    assert found.log_evidence_error < 0.15
    z = found.state.z
    w = (z - torch.tensor([3.0, -1.0], dtype=D)) / torch.tensor([1.0, 0.01], dtype=D)
    assert w.mean(0).abs().max() < 0.15 and (w.std(0) - 1).abs().max() < 0.1


def test_without_a_reference_a_pilot_finds_one(generator: torch.Generator) -> None:
    found = anneal(narrow, dim=2, particles=512, generator=generator)
    assert abs(found.log_evidence - math.log(7)) < max(4 * found.log_evidence_error, 0.05)


class Boastful(Gaussian):
    """Claims twice the density that it draws from."""

    def log_prob(self, z: Tensor) -> Tensor:
        return super().log_prob(z) + math.log(2)


def test_a_reference_that_lies_about_its_density_shows(generator: torch.Generator) -> None:
    scale = torch.tensor(10.0, dtype=D)
    found = anneal(narrow, Boastful(2, scale), particles=2048, generator=generator)
    assert abs(found.log_evidence - math.log(7)) > 4 * found.log_evidence_error


def test_the_error_bar_is_that_of_repeated_runs() -> None:
    runs = [
        anneal(two_modes, wide(1, 6.0), particles=256, generator=torch.Generator().manual_seed(s))
        for s in range(24)
    ]
    found = torch.tensor([run.log_evidence for run in runs])
    claimed = torch.tensor([run.log_evidence_error for run in runs]).square().mean().sqrt()
    assert 0.5 < float(found.std() / claimed) < 1.6
    # Joined runs are one with all their islands; the mean evidence is unbiased.
    all_ = joined(runs)
    assert len(all_.island_evidence) == 24 * 8 and len(all_.state.z) == 24 * 256
    assert abs(all_.log_evidence) < 4 * all_.log_evidence_error < 0.15


def test_modes_get_their_masses(generator: torch.Generator) -> None:
    found = anneal(two_modes, wide(1, 6.0), particles=4096, ess=0.9, generator=generator)
    weight = found.log_weights.exp()
    assert float(weight.mean()) == pytest.approx(1)
    islands = ((found.state.z[:, 0] > 0) * weight).view(8, -1).mean(1)
    error = islands.std() / math.sqrt(8)
    assert abs(float((islands.mean() - 0.2) / error)) < 4 and float(error) < 0.03


def test_impossible_regions_count_for_nothing(generator: torch.Generator) -> None:
    """Half of N(0, 1), -inf on the left and NaN beyond 3: the evidence is that of the rest."""

    def half(z: Tensor) -> Tensor:
        value = -z[:, 0].square() / 2 - math.log(2 * math.pi) / 2
        value = torch.where(z[:, 0] > 0, value, -math.inf)
        return torch.where(z[:, 0] > 3, math.nan, value)

    found = anneal(half, wide(1, 3.0), particles=2048, generator=generator)
    exact = math.log(0.5 * math.erf(3 / math.sqrt(2)))
    assert abs(found.log_evidence - exact) < 4 * found.log_evidence_error < 0.2
    assert bool(((found.state.z > 0) & (found.state.z <= 3)).all())


def test_gradients_are_counted_and_values_belong_to_points(generator: torch.Generator) -> None:
    calls = 0

    def counted(z: Tensor) -> Tensor:
        nonlocal calls
        calls += len(z)
        return narrow(z)

    found = anneal(counted, wide(2, 10.0), particles=64, generator=generator)
    assert found.gradient_calls == calls
    assert found.state.log_prob is not None
    torch.testing.assert_close(found.state.log_prob, narrow(found.state.z))


def test_a_budget_that_ends_is_told(generator: torch.Generator) -> None:
    budget = Budget(gradients=2000)
    found = anneal(narrow, wide(2, 1e3), particles=512, budget=budget, generator=generator)
    assert not found.finished and found.temperatures[-1] < 1


def test_the_same_seed_repeats_bit_for_bit() -> None:
    a, b = (
        anneal(two_modes, wide(1, 6.0), particles=64, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert a.state.z.equal(b.state.z) and a.log_evidence == b.log_evidence


def test_the_evidence_of_islands_is_their_mean() -> None:
    value, error = log_evidence(torch.tensor([0.0, math.log(3)], dtype=D))
    assert value == pytest.approx(math.log(2))
    assert error == pytest.approx(math.sqrt(2) / 2 / math.sqrt(2))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"particles": 100}, "must divide into"),
        ({"islands": 1}, "at least 2 islands"),
        ({"ess": 1.0}, "ess must lie between 0 and 1"),
        ({"reference": None}, "a reference or the dim"),
    ],
)
def test_bad_input_is_one_clear_sentence(given: dict[str, float], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        anneal(two_modes, **{"reference": wide(1, 6.0), **given})  # type: ignore[arg-type]


def test_a_reference_that_misses_the_support_is_named(generator: torch.Generator) -> None:
    with pytest.raises(Diverged, match="not finite at any point of the reference"):
        anneal(lambda z: (z[:, 0] - 1e9).log(), wide(1, 1.0), generator=generator)
