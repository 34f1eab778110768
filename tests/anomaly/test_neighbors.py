"""Distances to normal points against the formula, and what the weight is for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from damc.anomaly.neighbors import Neighbors, nearest
from damc.errors import BadInput


def points(n: int, d: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64)


def test_the_nearest_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("damc.anomaly.neighbors._CELLS", 1000)  # several parts
    a, z = points(300, 4) + 1000, points(50, 4, 1) + 1000  # far from 0, where rounding hurts
    distance, index = nearest(z.float(), a.float(), 6)
    wanted, where = NearestNeighbors(n_neighbors=6).fit(a.numpy()).kneighbors(z.numpy())
    assert np.allclose(distance, wanted, rtol=1e-2, atol=1e-3)
    assert (index.numpy() == where).mean() > 0.98
    exact, same = nearest(z, a, 6)
    assert np.allclose(exact, wanted) and np.array_equal(same, where)


def test_the_score_is_its_formula() -> None:
    a, z = points(80, 3), points(7, 3, 1)
    for weight, farthest in ((0.5, False), (0.0, True), (1.0, False)):
        found = Neighbors.fit(a, 4, weight, farthest=farthest)

        def log_d(x: torch.Tensor, others: torch.Tensor) -> tuple[float, list[int]]:
            d, order = (others - x).norm(dim=1).sort()
            return float(d[3] if farthest else d[:4].mean()), order[:4].tolist()  # noqa: B023

        for x, score in zip(z, found.score(z), strict=True):
            d, near = log_d(x, a)
            local = []
            for i in near:
                local.append(np.log(log_d(a[i], torch.cat([a[:i], a[i + 1 :]]))[0]))
            assert float(score) == pytest.approx(np.log(d) - weight * np.mean(local), abs=1e-9)


def test_points_are_scored_by_the_others() -> None:
    a = points(60, 2)
    found = Neighbors.fit(a, 3)
    for i in (0, 17, 59):
        rest = torch.cat([a[:i], a[i + 1 :]])
        d, index = nearest(a[i : i + 1], rest, 3)
        index = index + (index >= i)
        wanted = d.mean().log() - 0.5 * found.local[index].mean()
        assert float(found.own[i]) == pytest.approx(float(wanted), abs=1e-9)
    twice = Neighbors.fit(torch.cat([a, a, a, a, a]), 3)  # copies, at distance 0
    assert bool(torch.isfinite(twice.own).all()) and bool(torch.isfinite(twice.score(a)).all())


def test_half_a_weight_sees_both_kinds_of_anomaly() -> None:
    """One beside a dense group, nearer to it than sparse normal points are to each other; and one
    far off. The plain distance misses the first, the local factor alarms within the sparse."""
    dense, sparse = 0.05 * points(300, 2), 3 * points(300, 2, 1) + torch.tensor([30.0, 0])
    a = torch.cat([dense, sparse])
    beside = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    fresh = torch.cat([0.05 * points(200, 2, 2), 3 * points(200, 2, 3) + torch.tensor([30.0, 0])])
    rank = {}
    for weight in (0.0, 0.5, 1.0):
        found = Neighbors.fit(a, 5, weight)
        rank[weight] = float((found.score(fresh) < found.score(beside)).double().mean())
    assert rank[0.0] < 0.85 and rank[0.5] > 0.9
    theirs = LocalOutlierFactor(n_neighbors=5, novelty=True).fit(a.numpy())
    ours = Neighbors.fit(a, 5, 1.0).score(fresh)
    assert np.corrcoef(ours, np.log(-theirs.score_samples(fresh.numpy())))[0, 1] > 0.6


def test_variants_count_as_points_in_places_as_dense() -> None:
    a = points(50, 3)
    found = Neighbors.fit(a, 3, variants=torch.cat([a + 10, a + 20]))
    assert len(found.points) == 150 and len(found.own) == 50
    assert torch.equal(found.local[50:100], found.local[:50])
    assert torch.allclose(found.score(a + 10), found.score(a), atol=1e-9)


def test_one_point_has_no_neighbors() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        Neighbors.fit(points(1, 3))
