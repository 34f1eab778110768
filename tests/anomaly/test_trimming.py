"""Which rows are left out of contaminated data: groups as a whole, scattered ones one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from damc import AnomalyDetector
from damc.anomaly.fitting import fit_parts
from damc.anomaly.neighbors import Neighbors
from damc.anomaly.parts import NearNormal, PartsPlan
from damc.anomaly.trimming import distance_from_bulk, trim


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_the_distance_from_the_bulk_is_its_formula() -> None:
    z = normal(50, 3).double()
    distances = torch.cdist(z, z).sort(1).values[:, 6:]  # without itself and the nearest tenth
    assert torch.allclose(distance_from_bulk(z, 0.1), distances.log().mean(1))


def test_many_rows_are_compared_with_some(monkeypatch: pytest.MonkeyPatch) -> None:
    z = normal(900, 4)
    whole = distance_from_bulk(z, 0.1)
    monkeypatch.setattr("damc.anomaly.trimming._REFERENCES", 300)
    some = distance_from_bulk(z, 0.1)
    assert np.corrcoef(whole, some)[0, 1] > 0.99


def test_a_group_is_left_out_as_a_whole() -> None:
    """Rows of a loose group beside the bulk: half of them lie no farther out than normal rows do,
    and only their company tells."""
    group = torch.tensor([3.0, 3, 0, 0]) + 0.5 * normal(40, 4, 1)
    z = torch.cat([normal(360, 4), group])
    found = trim([z], 40)
    assert found.grouped and found.togetherness > 0.5
    assert int(found.left_out[360:].sum()) >= 38
    alone = distance_from_bulk(z, 0.1).topk(40).indices
    assert int((alone >= 360).sum()) < 38  # what averaging over neighbors adds


def test_scattered_anomalies_are_no_group() -> None:
    far = normal(40, 20, 1)
    far = 14 * far / far.norm(dim=1, keepdim=True)
    found = trim([torch.cat([normal(360, 20), far])], 40)
    assert not found.grouped and found.left_out[360:].all()
    assert int(found.left_out.sum()) == 40


def test_parts_look_past_a_group_and_never_at_how_dense_a_place_is() -> None:
    rows = normal(360, 6).numpy().astype(float)
    groups = {True: 4 + 0.2 * normal(40, 6, 1), False: 9 * normal(40, 6, 1)}
    order = np.random.RandomState(0).permutation(400)
    for grouped, odd in groups.items():
        data = np.concatenate([rows, odd.numpy()])
        (part,) = fit_parts(data, order, PartsPlan(), 0.1).parts
        assert isinstance(part, NearNormal) and part.name == "neighbors" and part.weight == 0
        assert (part.k, part.farthest) == ((25, True) if grouped else (5, False))


def test_anomalies_that_are_left_excuse_others_less_without_a_weight() -> None:
    """Scattered anomalies lie in a sparse place each; relative to such a neighbor, another one
    beside it seems normal."""
    places = 6 * torch.nn.functional.normalize(normal(60, 12, 1))
    data = torch.cat([normal(540, 12), places])
    fresh = torch.cat([normal(500, 12, 2), places + 0.5 * normal(60, 12, 3)])
    odd = np.repeat([0, 1], [500, 60])
    plain, half = (
        roc_auc_score(odd, Neighbors.fit(data, weight=weight).score(fresh)) for weight in (0, 0.5)
    )
    assert plain > half + 0.02


def test_a_small_share_of_few_rows_leaves_some_to_learn() -> None:
    with pytest.warns(UserWarning, match="rows"):
        detector = AnomalyDetector(contamination=0.49, random_state=0).fit(normal(5, 2).numpy())
    assert detector.decision_function(np.full((1, 2), 50.0))[0] > detector.threshold_


def test_images_are_trimmed_in_all_their_features_together() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(100, 12, 12, generator=g) * 0.2
    x[90:, 2:10, 2:10] = 1 - x[90:, 2:10, 2:10]
    detector = AnomalyDetector(contamination=0.1, random_state=0).fit(x.numpy())
    assert detector.labels_[90:].all() and detector.labels_[:90].mean() < 0.15
