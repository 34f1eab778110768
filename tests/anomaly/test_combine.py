"""Several scores as one, and decisions from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from damc.anomaly.combine import Combination
from damc.anomaly.threshold import Threshold
from damc.errors import BadInput


def test_the_combined_score_is_its_formula_and_ignores_units() -> None:
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(500, 3, generator=g, dtype=torch.float64)
    found = Combination.fit(scores)(scores)
    standard = (scores - scores.mean(0)) / scores.std(0, correction=0)
    assert torch.allclose(found, standard.exp().mean(1).log())
    other = scores * torch.tensor([1.0, 50.0, 0.01]) + torch.tensor([0.0, 7.0, -3.0])
    assert torch.allclose(Combination.fit(other)(other), found)
    assert torch.allclose(Combination.fit(scores[:, :1])(scores[:, :1]), standard[:, 0])


def test_one_part_is_enough_and_two_are_more() -> None:
    ones = torch.ones(2)
    both = Combination(0 * ones, ones, 0 * ones, ones, 0 * ones)
    one, blind, two = both(torch.tensor([[5.0, 0.0], [5.0, -5.0], [5.0, 5.0]]))
    assert float(two) == pytest.approx(5)
    assert 5 - math.log(2) < float(blind) < float(one) < float(two)
    constant = Combination.fit(torch.full((4, 2), 3.0))
    assert float(constant(torch.tensor([[3.0, 4.0]]))) == pytest.approx(math.log((1 + math.e) / 2))
    with pytest.raises(BadInput, match=r"\(n, P\)"):
        Combination.fit(torch.zeros(0, 2))


def test_simple_and_busy_anomalies_both_stand_out() -> None:
    """Scores grow with detail; an anomaly of little detail scores like a usual normal image, one of
    much detail like the busiest: either is found, and more detail than normal is no excuse."""
    g = torch.Generator().manual_seed(0)
    c = torch.randn(2000, generator=g, dtype=torch.float64)
    s = (c + 0.3 * torch.randn(2000, generator=g, dtype=torch.float64))[:, None]
    found = Combination.fit(s, c)
    assert float(found.slope) == pytest.approx(0.5, abs=0.02)  # half of 1
    normal = found(s, c)
    odd = found(torch.tensor([[0.6], [4.0]]), torch.tensor([-2.0, 3.0]))
    plain = Combination.fit(s)(torch.tensor([[0.6]]))
    rank = (normal < odd[0]).double().mean(), (normal < odd[1]).double().mean()
    assert rank[0] > 0.95 and rank[1] > 0.99
    assert (Combination.fit(s)(s) < plain).double().mean() < 0.8
    busier = found(torch.tensor([[4.0]]), torch.tensor([9.0]))
    assert float(busier) == pytest.approx(float(odd[1]), abs=0.2)
    equal = Combination.fit(s, torch.full((2000,), 3.0))  # nothing to learn of detail
    assert torch.allclose(equal(s, torch.full((2000,), 3.0)), Combination.fit(s)(s))


def test_fresh_scores_exceed_the_threshold_as_often_as_promised() -> None:
    """The mean over many samples of m is 1 - quantile, even where m is small."""
    random = np.random.default_rng(0)
    for m in (25, 60, 200):
        rates, inside = [], 0
        for _ in range(2000):
            threshold = Threshold(random.exponential(size=m), 0.95)
            rate = math.exp(-threshold.value)  # of an exponential law
            low, high = threshold.false_alarms(0.9)
            rates.append(rate)
            inside += low <= rate <= high
        error = np.std(rates) / 2000**0.5
        # Interpolating between two scores is off by a little where few lie above.
        assert abs(np.mean(rates) - 0.05) < 4 * error + 0.1 / m, (m, np.mean(rates))
        assert abs(inside / 2000 - 0.9) < 0.03


def test_few_scores_cannot_tell_what_one_in_twenty_does() -> None:
    few = Threshold(np.arange(10.0), 0.95)
    assert few.value == pytest.approx(9, rel=1e-4)
    assert few.false_alarms()[1] > 0.2
    with pytest.raises(BadInput, match=r"\(m,\)"):
        Threshold(np.zeros(0), 0.95)


def test_p_values_are_valid() -> None:
    random = np.random.default_rng(1)
    p = np.array(
        [
            Threshold(random.normal(size=19), 0.95).p_values(random.normal(size=1))[0]
            for _ in range(4000)
        ]
    )
    for level in (0.05, 0.1, 0.5):
        assert abs((p <= level + 1e-9).mean() - level) < 4 * (level * (1 - level) / 4000) ** 0.5
    assert Threshold(np.array([1.0, 2.0]), 0.5).p_values(np.array([2.0])) == pytest.approx(2 / 3)
