from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from damc.errors import BadInput
from damc.metrics.detection import auprc, auroc, average_precision, detection_scores, lowest_auprc


def by_hand(labels: list[int], scores: list[float]) -> tuple[float, float, float]:
    """Trapezoid AUPRC, average precision and AUROC from their definitions."""
    positives = sum(labels)
    curve = []
    for threshold in sorted(set(scores), reverse=True):
        hit = [y for y, s in zip(labels, scores, strict=True) if s >= threshold]
        curve.append((sum(hit) / positives, sum(hit) / len(hit)))
    trapezoid, steps, before = 0.0, 0.0, (0.0, 1.0)
    for recall, precision in curve:
        trapezoid += (recall - before[0]) * (precision + before[1]) / 2
        steps += (recall - before[0]) * precision
        before = (recall, precision)
    up = [s for y, s in zip(labels, scores, strict=True) if y]
    down = [s for y, s in zip(labels, scores, strict=True) if not y]
    wins = sum((u > d) + 0.5 * (u == d) for u in up for d in down)
    return trapezoid, steps, wins / (len(up) * len(down))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), min_size=2, max_size=25))
def test_areas_equal_their_definitions(pairs: list[tuple[int, int]]) -> None:
    labels = [0, 1, *(y for y, _ in pairs)]
    scores = [3.0, 2.0, *(float(s) for _, s in pairs)]
    trapezoid, steps, roc = by_hand(labels, scores)
    y, s = torch.tensor(labels), torch.tensor(scores)
    assert auprc(y, s) == pytest.approx(trapezoid)
    assert average_precision(y, s) == pytest.approx(steps)
    assert auroc(y, s) == pytest.approx(roc)


def test_equal_scores_show_why_both_areas_are_given() -> None:
    y, s = torch.tensor([1, 0, 0, 0]), torch.zeros(4)
    assert average_precision(y, s) == pytest.approx(0.25)
    assert auprc(y, s) == pytest.approx((1 + 0.25) / 2)


@pytest.mark.parametrize(
    ("anomalies", "normals", "lowest"),
    [(7877, 12425, 0.2255), (6824, 12636, 0.2004), (6313, 12738, 0.1878), (6958, 12609, 0.2037)],
)
def test_the_lowest_auprc_is_that_of_the_worst_ranking(
    anomalies: int, normals: int, lowest: float
) -> None:
    """The MNIST test sets with digits 1, 4, 5 and 9 held out."""
    labels = torch.cat([torch.ones(anomalies), torch.zeros(normals)])
    result = detection_scores(labels, torch.arange(len(labels)))
    assert result.lowest == pytest.approx(lowest, abs=5e-5)
    assert result.auprc == pytest.approx(result.lowest, abs=1e-3)
    assert result.chance == anomalies / len(labels)
    assert (result.anomalies, result.normals, result.auroc) == (anomalies, normals, 0.0)


def test_random_scores_reach_the_chance_level() -> None:
    g = torch.Generator().manual_seed(0)
    labels = (torch.rand(20_000, generator=g) < 0.3).long()
    result = detection_scores(labels, torch.rand(20_000, generator=g))
    error = math.sqrt(0.3 * 0.7 / 6000)
    assert abs(result.average_precision - result.chance) < 4 * error
    assert abs(result.auroc - 0.5) < 4 * math.sqrt(1 / 12 * (1 / 6000 + 1 / 14000))


def test_the_limits_of_the_prevalence() -> None:
    assert lowest_auprc(1.0) == 1.0
    assert lowest_auprc(1e-6) == pytest.approx(0.5e-6, rel=1e-3)
    with pytest.raises(BadInput, match=r"prevalence must lie in \(0, 1\], got 0"):
        lowest_auprc(0.0)


@pytest.mark.parametrize(
    ("labels", "scores", "words"),
    [
        ([0, 0], [1.0, 2.0], "got 0 anomalies of 2"),
        ([0, 2], [1.0, 2.0], "0 .normal. or 1"),
        ([0, 1], [1.0, math.nan], "NaN"),
        ([0, 1, 1], [1.0, 2.0], "one shape"),
    ],
)
def test_bad_input_is_one_sentence(labels: list[int], scores: list[float], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        detection_scores(torch.tensor(labels), torch.tensor(scores))
