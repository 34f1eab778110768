from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist

from damc.errors import BadInput
from damc.metrics.two_sample import c2st, c2st_many, energy_distance, mmd, permutation_test


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=rng(seed))


def test_c2st_of_one_distribution_is_a_half() -> None:
    """The mean of 8 null tests lies within 4 standard errors of 0.5; a biased one would not."""
    groups, n = 8, 500
    value = c2st_many(
        normal(groups, n, 3, seed=0), normal(groups, n, 3, seed=1), epochs=15, generator=rng(2)
    )
    assert value.shape == (groups,)
    assert abs(float(value.mean()) - 0.5) < 4 * 0.7 / math.sqrt(groups * 2 * n)


def test_c2st_reaches_the_best_possible_accuracy() -> None:
    """N(0, I) against N(m, I): no classifier beats Phi(|m| / 2), and a good one comes close."""
    n, shift = 1000, 0.8
    a, b = normal(4, n, 2, seed=0), normal(4, n, 2, seed=1) + shift
    best = stats.norm.cdf(shift * math.sqrt(2) / 2)
    error = 0.7 / math.sqrt(4 * 2 * n)
    value = float(c2st_many(a, b, epochs=15, generator=rng(2)).mean())
    assert best - 0.02 - 3 * error < value < best + 3 * error


def test_c2st_sees_what_means_and_variances_do_not() -> None:
    """A ring against a Gaussian of the same mean and covariance."""
    n = 1000
    angle = 2 * math.pi * torch.rand(n, generator=rng(0))
    ring = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], 1)
    assert c2st(ring, normal(n, 2, seed=1), epochs=15, generator=rng(2)) > 0.9


def test_c2st_sees_that_each_of_many_modes_is_too_narrow() -> None:
    """40 modes with sd 1 instead of 1.31: the network alone reads about 0.50, the trees 0.55."""
    n, g = 4000, rng(0)
    means = (torch.rand(40, 2, generator=g) - 0.5) * 80

    def points(sd: float) -> torch.Tensor:
        mode = torch.randint(40, (n,), generator=g)
        return means[mode] + sd * torch.randn(n, 2, generator=g)

    exact, second, narrow = points(1.31), points(1.31), points(1.0)
    error = 0.7 / math.sqrt(2 * n)
    assert c2st(narrow, exact, epochs=10, generator=rng(2)) > 0.5 + 4 * error
    assert abs(c2st(second, exact, epochs=10, generator=rng(2)) - 0.5) < 3 * error


def test_c2st_does_not_memorise_its_test_points() -> None:
    """In 50 dimensions 200 points are told apart by heart, so a leak would show."""
    a, b = normal(4, 100, 50, seed=0), normal(4, 100, 50, seed=1)
    value = float(c2st_many(a, b, epochs=15, generator=rng(2)).mean())
    assert abs(value - 0.5) < 4 * 0.7 / math.sqrt(800)
    # Five copies of each point put the test points into the training folds: that is the leak.
    leak = float(
        c2st_many(a.repeat(1, 5, 1), b.repeat(1, 5, 1), epochs=15, generator=rng(2)).mean()
    )
    assert leak > 0.8


def test_c2st_ignores_the_scale_of_each_group_and_repeats_with_its_seed() -> None:
    a, b = normal(2, 200, 2, seed=0), normal(2, 200, 2, seed=1) + 0.5
    once = c2st_many(a, b, epochs=5, generator=rng(3))
    assert torch.equal(once, c2st_many(a, b, epochs=5, generator=rng(3)))
    factor = torch.tensor([64.0, 1 / 64])[:, None, None]
    assert torch.allclose(once, c2st_many(a * factor, b * factor, epochs=5, generator=rng(3)))
    with torch.inference_mode():
        assert torch.equal(once, c2st_many(a, b, epochs=5, generator=rng(3)))


def test_c2st_looks_past_constant_and_far_away_coordinates() -> None:
    a, b = normal(500, 2, seed=0).double(), normal(500, 2, seed=1).double() + 2
    a[:, 1] = b[:, 1] = 0.1
    a[:, 0], b[:, 0] = a[:, 0] + 1e8, b[:, 0] + 1e8
    assert c2st(a, b, epochs=10, generator=rng(2)) == pytest.approx(0.841, abs=0.04)


def energy_reference(a: np.ndarray, b: np.ndarray) -> float:
    n, m = len(a), len(b)
    within = cdist(a, a).sum() / (n * (n - 1)) + cdist(b, b).sum() / (m * (m - 1))
    return float(2 * cdist(a, b).mean() - within)


def mmd_reference(a: np.ndarray, b: np.ndarray, width: float) -> float:
    def k(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(-cdist(x, y, "sqeuclidean") / (2 * width**2))

    n, m = len(a), len(b)
    within = (k(a, a).sum() - n) / (n * (n - 1)) + (k(b, b).sum() - m) / (m * (m - 1))
    return float(within - 2 * k(a, b).mean())


def test_statistics_equal_their_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(70, 5, seed=0).double(), normal(41, 5, seed=1).double() * 1.3 + 0.2
    width = float(np.median(cdist(*(2 * [torch.cat([a, b]).numpy()]))[np.triu_indices(111, 1)]))
    energy = energy_reference(a.numpy(), b.numpy())
    kernel = mmd_reference(a.numpy(), b.numpy(), width)
    assert energy_distance(a, b) == pytest.approx(energy, rel=1e-10)
    assert mmd(a, b) == pytest.approx(kernel, rel=1e-3)  # torch's median is the lower of two
    assert mmd(a, b, bandwidth=width) == pytest.approx(kernel, rel=1e-10)
    monkeypatch.setattr("damc.metrics.two_sample._BLOCK", 500)
    assert energy_distance(a, b) == pytest.approx(energy, rel=1e-10)


def test_energy_distance_in_one_dimension_is_twice_the_cramer_distance() -> None:
    """2 int (F - G)^2 is the V-statistic; for N(0, 1) and N(1, 1) it has a closed form."""

    def mean_abs(mean: float, deviation: float) -> float:
        return float(stats.foldnorm.mean(mean / deviation, scale=deviation))

    exact = 2 * mean_abs(1.0, math.sqrt(2)) - 2 * mean_abs(0.0, math.sqrt(2))
    values = [
        energy_distance(normal(500, 1, seed=s), normal(500, 1, seed=s + 100) + 1) for s in range(20)
    ]
    error = np.std(values, ddof=1) / math.sqrt(20)
    assert abs(np.mean(values) - exact) < 4 * error
    assert error < 0.1 * exact


@pytest.mark.parametrize("statistic", [energy_distance, mmd])
def test_permutation_test_agrees_with_one_call_for_each_permutation(statistic) -> None:  # type: ignore[no-untyped-def]
    a, b = normal(30, 2, seed=0).double(), normal(20, 2, seed=1).double() + 0.3
    fast = permutation_test(statistic, a, b, permutations=99, generator=rng(2))
    slow = permutation_test(lambda x, y: statistic(x, y), a, b, permutations=99, generator=rng(2))
    assert fast == pytest.approx(slow, rel=1e-9)


@pytest.mark.parametrize("statistic", [energy_distance, mmd])
def test_p_values_are_uniform_under_the_null_and_small_otherwise(statistic) -> None:  # type: ignore[no-untyped-def]
    draws, permutations = 200, 39

    def p(seed: int, shift: float) -> float:
        a, b = normal(25, 2, seed=2 * seed), normal(25, 2, seed=2 * seed + 1) + shift
        return permutation_test(statistic, a, b, permutations=permutations, generator=rng(seed))[1]

    null = np.array([p(s, 0.0) for s in range(draws)])
    # The p-values lie on a grid of 40, so 10 equal bins hold 20 of 200 on average.
    counts = np.bincount(np.ceil(null * 10 - 1e-9).astype(int) - 1, minlength=10)
    assert stats.chisquare(counts).pvalue > 1e-3
    shifted = np.array([p(s, 0.5) for s in range(50)])
    assert (shifted <= 0.05).mean() > 0.3  # the same bins would not pass as uniform
    assert stats.binomtest(int((shifted <= 0.05).sum()), 50, 0.05).pvalue < 1e-6


def test_bad_input_is_one_sentence() -> None:
    a = normal(10, 2, seed=0)
    with pytest.raises(BadInput, match="as many points"):
        c2st(a, a[:5])
    with pytest.raises(BadInput, match="two \\(n, d\\) tensors"):
        c2st(a[None], a[None])
    with pytest.raises(BadInput, match="folds is 11"):
        c2st(a, a, folds=11)
    with pytest.raises(BadInput, match="NaN"):
        energy_distance(a, a / 0)
    with pytest.raises(BadInput, match="at least 2 points"):
        mmd(a, a[:1])
    with pytest.raises(BadInput, match="bandwidth is 0"):
        mmd(torch.zeros(5, 2), torch.zeros(5, 2))
