"""Where images are anomalous: the surprise against regression, planted defects, user's features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

import damc
from damc import AnomalyDetector, BadInput
from damc.anomaly.combine import Combination
from damc.anomaly.places import Patches, Surprises
from damc.anomaly.surprise import Surprise, sample_windows


def fields(n: int, side: int, seed: int = 0, channels: int = 1) -> Tensor:
    """Smooth random textures, (n, channels, side, side)."""
    g = torch.Generator().manual_seed(seed)
    white = torch.randn(n, channels, side + 6, side + 6, generator=g)
    kernel = torch.tensor([1.0, 6, 15, 20, 15, 6, 1])
    weight = (kernel[:, None] * kernel / kernel.sum() ** 2).expand(channels, 1, 7, 7)
    x = functional.conv2d(white, weight, groups=channels) * 3
    return x[..., :side, :side].clamp(-1, 1)


def test_the_surprise_is_the_error_of_a_regression_on_the_surroundings() -> None:
    x = fields(400, 8)
    g = torch.Generator().manual_seed(0)
    found = Surprise.of(sample_windows(x, g), channels=1)
    windows = x[:, 0].flatten(1).numpy().astype(np.float64)
    inner = np.zeros((8, 8), bool)
    inner[3:5, 3:5] = True
    inner = inner.flatten()
    fit = LinearRegression().fit(windows[:, ~inner], windows[:, inner])
    error = windows[:, inner] - fit.predict(windows[:, ~inner])
    wanted = (error @ np.linalg.inv(np.cov(error.T)) * error).sum(1) / 4
    k = found.filters.shape[-1]
    assert k == 8
    ours = functional.conv2d(x, found.filters, found.bias).square().mean(1).flatten().numpy()
    assert np.corrcoef(ours, wanted)[0, 1] > 0.8  # one from all windows, one from the middle ones
    assert 0.3 < ours.mean() < 1.5  # 1, but for the ridge


def test_planted_defects_are_found_where_they_are() -> None:
    x = fields(300, 24, channels=3)
    fresh, masks = fields(40, 24, 1, channels=3), np.zeros((40, 24, 24))
    for i in range(40):
        a, b = 3 + i % 14, 2 + (5 * i) % 15
        fresh[i, :, a : a + 5, b : b + 5] = torch.tensor([0.5, -0.5, 0.2])[:, None, None]
        masks[i, a : a + 5, b : b + 5] = 1
    detector = AnomalyDetector(random_state=0).fit(x.numpy())
    maps = detector.explain(fresh.numpy())
    assert maps.shape == (40, 3, 24, 24) and np.array_equal(maps[:, 0], maps[:, 2])
    assert roc_auc_score(masks.flatten(), maps[:, 0].flatten()) > 0.9
    whole = AnomalyDetector(score_kind="surprise", random_state=0).fit(x.numpy())
    normal = fields(40, 24, 2, channels=3)
    scores = whole.decision_function(torch.cat([normal, fresh]))
    assert roc_auc_score(np.repeat([0, 1], 40), scores) > 0.95


def test_maps_have_the_shape_of_what_they_explain() -> None:
    gray, color = fields(30, 9).numpy(), fields(30, 9, channels=3).numpy()
    detector = AnomalyDetector(random_state=0).fit(gray)
    assert detector.explain(gray[:4]).shape == (4, 1, 9, 9)
    assert detector.explain(gray[:4, 0]).shape == (4, 9, 9)
    assert detector.explain(gray[0, 0]).shape == (9, 9)  # a bare image
    assert detector.decision_function(gray[0, 0]).shape == (1,)
    assert np.allclose(detector.explain(gray[0, 0]), detector.explain(gray[:4])[0, 0], atol=1e-5)
    detector = AnomalyDetector(random_state=0).fit(color)
    first = detector.explain(color[:4])
    last = detector.explain(color[:4].transpose(0, 2, 3, 1))
    assert first.shape == (4, 3, 9, 9) and last.shape == (4, 9, 9, 3)
    assert np.allclose(first, last.transpose(0, 3, 1, 2), atol=1e-5)
    assert detector.explain(color[0]).shape == (3, 9, 9)
    rows = np.random.default_rng(0).normal(size=(100, 4))
    odd = np.array([[0, 0, 6.0, 0]])
    found = AnomalyDetector(random_state=0).fit(rows).explain(odd)
    assert found.shape == (1, 4) and found.argmax() == 2 and found.max() > 3


def test_a_folder_is_data_and_mixed_sizes_are_told(tmp_path: Path) -> None:
    from PIL import Image

    x = ((fields(24, 12)[:, 0] + 1) * 127.5).byte().numpy()
    for i, image in enumerate(x):
        Image.fromarray(image).save(tmp_path / f"{i:02d}.png")
    detector = AnomalyDetector(random_state=0).fit(x)
    again = AnomalyDetector(random_state=0).fit(str(tmp_path))
    assert np.allclose(again.decision_scores_, detector.decision_scores_, atol=1e-2)
    assert detector.explain(tmp_path).shape == (24, 1, 12, 12)
    Image.fromarray(x[0, :8]).save(tmp_path / "wide.png")
    with pytest.raises(BadInput) as error:
        AnomalyDetector().fit(tmp_path)
    assert "\n" not in str(error.value) and "size" in str(error.value)


class Stages(nn.Module):
    """Fixed random filters at two scales."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("filters", torch.randn(16, 1, 5, 5, generator=g))

    def forward(self, x: Tensor) -> list[Tensor]:
        filters: Any = self.filters
        maps = functional.conv2d(x, filters, padding=2).relu()
        return [functional.avg_pool2d(maps, 2), functional.avg_pool2d(maps, 4)]


def test_a_users_network_sees_patches(tmp_path: Path) -> None:
    x, fresh = fields(60, 32), fields(40, 32, 1)
    masks = np.zeros((40, 32, 32))
    for i in range(20, 40):
        fresh[i, 0, 8:14, i - 14 : i - 8] = torch.tensor([-1.0, 1.0]).repeat(3)  # fine stripes
        masks[i, 8:14, i - 14 : i - 8] = 1
    detector = AnomalyDetector(features=Stages(), random_state=0).fit(x)
    assert [part.name for part in detector.parts_] == ["pixels", "gradients", "patches"]
    odd = np.repeat([0, 1], 20)
    assert roc_auc_score(odd, detector.part_scores(fresh)["patches"]) > 0.95
    maps = detector.explain(fresh[20:].numpy())
    assert maps.shape == (20, 1, 32, 32)
    assert roc_auc_score(masks[20:].flatten(), maps.flatten()) > 0.9
    detector.save(tmp_path / "run")
    with pytest.raises(BadInput, match="give it again as features="):
        damc.load(tmp_path / "run")
    again = AnomalyDetector.from_run(tmp_path / "run", features=Stages())
    assert np.array_equal(again.decision_function(fresh), detector.decision_function(fresh))
    assert np.array_equal(again.explain(fresh.numpy()), detector.explain(fresh.numpy()))


def test_many_patches_are_thinned_and_bad_features_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("damc.anomaly.places._REMEMBERED", 100)
    part = Patches(lambda x: x).fit(fields(20, 10).split(4))
    assert part.points is not None and part.points.shape == (100, 1)
    with pytest.raises(BadInput, match=r"maps \(B, F, h, w\)"):
        Patches(lambda x: x[:, 0]).fit([fields(2, 10)])
    with pytest.raises(BadInput, match="features"):
        AnomalyDetector(score_kind="patches").fit(fields(30, 10))


def test_large_images_are_looked_at_place_by_place() -> None:
    x = fields(24, 100, channels=3).numpy()
    detector = AnomalyDetector(random_state=0).fit(x)
    assert [part.name for part in detector.parts_] == [
        "pixels",
        "gradients",
        "spectrum",
        "surprise",
    ]
    assert len(detector.fitted_.places.surprises) == 2  # of 100 and 50 pixels
    scratched = x[:2].copy()
    scratched[:, :, 50, 30:60] = 1
    assert (
        detector.part_scores(scratched)["surprise"] > detector.part_scores(x)["surprise"].max()
    ).all()


def test_tiles_find_what_is_odd_wherever_it_lies(tmp_path: Path) -> None:
    """Normal tiles may lie anywhere, which distances between whole images do not know."""
    x, fresh = fields(40, 64), fields(40, 64, 1)
    for i in range(20, 40):
        a, b = 8 + i, 60 - i
        fresh[i, 0, a : a + 12, b - 8 : b + 4] = torch.tensor([-1.0, -1, 1, 1]).repeat(3)
    detector = AnomalyDetector(tile=16, random_state=0).fit(x)
    assert [part.name for part in detector.parts_] == ["tiles"]
    assert roc_auc_score(np.repeat([0, 1], 20), detector.decision_function(fresh)) > 0.95
    assert detector.explain(fresh[:2].numpy()).shape == (2, 1, 64, 64)
    again = damc.load(detector.save(tmp_path / "tiles"))
    assert np.array_equal(again.decision_function(fresh), detector.decision_function(fresh))
    for tile, said in ((12, "multiple of 8"), (64, "less than the images' 64")):
        with pytest.raises(BadInput, match=said):
            AnomalyDetector(tile=tile).fit(x)
    with pytest.raises(BadInput, match="None for vectors"):
        AnomalyDetector(tile=16).fit(x[:, 0, 0])


def test_very_large_images_are_standardized_by_some_of_their_pixels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 images of 1024x1024 had more pixels than torch.quantile takes."""
    x = fields(8, 40)
    whole = Surprises().fit([x])
    monkeypatch.setattr("damc.anomaly.places._PIXELS", 1000)
    some = Surprises().fit([x])
    assert torch.allclose(whole.score(x), some.score(x), atol=0.3)
    seen: list[int] = []
    fit = Combination.fit
    monkeypatch.setattr(
        Combination, "fit", classmethod(lambda cls, s, d=None: seen.append(len(s)) or fit(s, d))
    )
    Surprises().fit([x])
    assert seen[0] <= 1000
