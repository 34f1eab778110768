"""Which rows a detector learns, is calibrated on, takes its threshold from; what that promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from damc import AnomalyDetector
from damc.anomaly import fitting
from damc.anomaly.combine import Combination
from damc.anomaly.fitting import fit_parts
from damc.anomaly.parts import NearNormal, PartsPlan


def test_false_alarms_on_fresh_normal_rows_are_as_promised() -> None:
    """300 rows, 20 seeds: 5 % +- 1.5 %. Columns of very different laws, none of them Gaussian."""
    rates = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        shared = random.normal(size=(1300, 1))
        columns = [random.exponential(size=(1300, 2)), random.uniform(size=(1300, 1))]
        X = np.concatenate([*columns, shared + 0.1 * random.normal(size=(1300, 2))], 1)
        detector = AnomalyDetector(random_state=seed).fit(X[:300])
        rates.append(detector.predict(X[300:]).mean())
        low, high = detector.false_alarms_
        assert low < 0.05 < high
    # The standard error of the mean over 20 thresholds of 300 rows each is 0.3 %.
    assert abs(np.mean(rates) - 0.05) < 0.01, rates
    assert np.std(rates) < 0.018  # 1.3 % expected; 1.8 % of half of the rows


def test_p_values_of_fresh_normal_rows_are_uniform_at_most() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(2300, 3))
    p = AnomalyDetector(random_state=0).fit(X[:300]).p_values(X[300:])
    for level in (0.05, 0.2, 0.5):
        error = (level * (1 - level) * (1 / 300 + 1 / 2000)) ** 0.5
        assert abs((p <= level).mean() - level) < 3.5 * error + 1 / 301
    assert p.min() >= 1 / 301 and p.max() <= 1


def test_every_row_is_scored_by_parts_fitted_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values name their rows: no fold learns what it scores, and no row gives the units in which
    its own score counts for the threshold."""
    X = np.random.default_rng(0).permutation(200)[:, None].astype(float)
    learned: list[set[float]] = []
    overlaps: list[int] = []
    fit, score = NearNormal.fit, NearNormal.score

    def seen(scaled: torch.Tensor) -> set[float]:
        return {round(float(v), 4) for v in scaled.flatten()}

    def noted_fit(self: NearNormal, batches: Any) -> NearNormal:
        parts = list(batches)
        learned.append(set().union(*map(seen, parts)))
        return fit(self, parts)

    def noted_score(self: NearNormal, x: torch.Tensor) -> torch.Tensor:
        overlaps.append(len(learned[-1] & seen(x)))
        return score(self, x)

    monkeypatch.setattr(NearNormal, "fit", noted_fit)
    monkeypatch.setattr(NearNormal, "score", noted_score)
    monkeypatch.setattr(fitting, "measure", lambda data: fitting.Columns((0.0,), (1.0,)))
    order = np.random.RandomState(0).permutation(200)
    fitted = fit_parts(X, order, PartsPlan(), None)
    assert len(learned) == 21 and all(len(part) == 190 for part in learned[:20])
    assert len(learned[20]) == 200 and overlaps == [0] * 20
    own = fitted.own[order]
    assert torch.allclose(fitted.combination.mean, own.mean(0)[:-1])
    for k in range(5):
        others = torch.arange(200) % 5 != k
        units = Combination.fit(own[others, :-1], own[others, -1])
        assert torch.equal(fitted.normal[k::5], units(own[k::5, :-1], own[k::5, -1]))


def test_many_rows_are_split_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_MANY", 100)
    X = np.random.default_rng(0).normal(size=(150, 2))
    order = np.random.RandomState(0).permutation(150)
    fitted = fit_parts(X, order, PartsPlan(), None)
    part = fitted.parts[0]
    assert isinstance(part, NearNormal) and part.neighbors is not None
    assert len(part.neighbors.points) == 120 and len(fitted.normal) == 30
    x = torch.from_numpy(fitted.scaling(X))
    assert torch.allclose(fitted.own[order[:30], 0], part.score(x)[order[:30]].double(), atol=1e-5)
    assert torch.equal(fitted.own[order[30:], 0], part.own.double())  # each by the others


def test_anomalies_among_the_data_are_left_out() -> None:
    """A tight group of a tenth of the rows hides from its own neighbors, unless told of."""
    random = np.random.default_rng(0)
    normal, group = random.normal(size=(400, 6)), 4 + 0.2 * random.normal(size=(40, 6))
    fresh = np.concatenate([random.normal(size=(200, 6)), 4 + 0.2 * random.normal(size=(50, 6))])
    labels = np.repeat([0, 1], [200, 50])
    area = {}
    for share in (None, 0.1):
        detector = AnomalyDetector(contamination=share, random_state=0)
        detector.fit(np.concatenate([normal, group]))
        area[share] = roc_auc_score(labels, detector.decision_function(fresh))
    assert area[None] < 0.6 and area[0.1] > 0.99
    assert detector.labels_[400:].all() and detector.labels_[:400].mean() < 0.12


def test_few_rows_are_warned_of() -> None:
    X = np.random.default_rng(0).normal(size=(12, 3))
    with pytest.warns(UserWarning, match="12 rows"):
        detector = AnomalyDetector(random_state=0).fit(X)
    assert detector.false_alarms_[1] > 0.2
    assert detector.predict(X + 50).all()


@pytest.mark.parametrize("n", [24, 60])
def test_few_images_are_not_strangers_to_their_own_detector(n: int) -> None:
    """Main directions of few images fit those alone: all others lie off them alike, and so near
    each other, that the very images seemed odd."""
    random = np.random.default_rng(0)
    images, fresh = random.uniform(size=(n, 16, 16)), random.uniform(size=(200, 16, 16))
    detector = AnomalyDetector(random_state=0).fit(images)
    assert detector.predict(images).mean() <= 0.1
    assert detector.predict(fresh).mean() < 0.15
