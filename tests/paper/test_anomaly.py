"""The table of anomalies: which images each score is fitted to and measured on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from damc.anomaly.scores import Calibration, error_and_detail, misfit, score
from damc.data import Images, load_images
from damc.data.sources import ArrayStore
from damc.errors import BadInput
from damc.learn import DAMC, Learner
from damc.metrics.detection import auprc
from damc.paper.anomaly import _uncalibrated, anomalies_in, detections, figures_of, scores_of
from damc.paper.baselines import baseline_scores


class Half(Learner):
    """Reconstructs half of every image, and nothing of a first pixel."""

    name = "half"
    inference = "encoder"
    score = "mean"

    def reconstruct(self, x: Tensor, **options: Any) -> Tensor:
        return x * torch.where(torch.arange(x.shape[3]) == 0, 0.0, 0.5)

    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return -x.mean((1, 2, 3))


class Mute(Learner):
    """Has a score and no reconstruction."""

    name = "mute"
    score = "mean"

    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return -x.mean((1, 2, 3))


def _images(n: int, seed: int) -> tuple[Images, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(n, 1, 6, 6, generator=g) - 0.5) * torch.rand(n, 1, 1, 1, generator=g)
    labels = (torch.rand(n, generator=g) < 0.3).long() * 7
    x[labels == 7, :, :, 0] *= 1.5
    return Images(ArrayStore(x.numpy(), -1.0), name="made", labels=labels), labels == 7


def test_every_score_is_read_on_the_test_images_and_calibrated_on_the_others() -> None:
    normal, _ = _images(700, 0)  # more than one batch
    test, odd = _images(900, 1)
    every, rest = test.batch(torch.arange(900)), normal.batch(torch.arange(700))
    found = detections(scores_of(Half(), normal, test, seed=0), anomalies_in(test, 7))
    assert set(found) == {"own", "reconstruction", "calibrated"}
    error, detail = error_and_detail(Half(), every)
    fitted = Calibration.of(*error_and_detail(Half(), rest)).score_errors(error, detail)
    assert found["own"].auprc == pytest.approx(auprc(odd, -every.mean((1, 2, 3))), abs=1e-6)
    squared = (every - Half().reconstruct(every)).square().sum((1, 2, 3))
    assert found["reconstruction"].auprc == pytest.approx(auprc(odd, squared), abs=1e-6)
    assert found["calibrated"].auprc == pytest.approx(auprc(odd, fitted), abs=1e-6)
    assert found["calibrated"].auprc > found["reconstruction"].auprc + 0.05
    assert found["calibrated"].anomalies == int(odd.sum())


def test_an_image_is_reconstructed_once_where_there_is_no_amortizer() -> None:
    class Counting(Half):
        seen = 0

        def reconstruct(self, x: Tensor, **options: Any) -> Tensor:
            self.seen += len(x)
            return super().reconstruct(x, **options)

    learner = Counting()
    scores_of(learner, _images(30, 0)[0], _images(40, 1)[0], seed=0)
    assert learner.seen == 70


def test_a_learner_without_reconstructions_has_its_own_score_only() -> None:
    test, _ = _images(50, 1)
    odd = anomalies_in(test, 7)
    found = detections(scores_of(Mute(), test, test, seed=0), odd)
    assert set(found) == {"own"}
    assert set(figures_of(found)) == {"auprc_own", "chance", "lowest"}  # none called calibrated
    both = detections(scores_of(Half(), test, test, seed=0), odd)
    assert figures_of(both)["auroc"] == both["calibrated"].auroc != both["own"].auroc
    unlabeled = Images(ArrayStore(torch.zeros(4, 1, 6, 6).numpy(), -1.0), name="made")
    with pytest.raises(BadInput, match="must have labels"):
        anomalies_in(unlabeled, 7)


def test_one_inference_serves_the_scores_that_need_no_calibration() -> None:
    torch.manual_seed(0)
    learner = DAMC.from_preset("digits-small", sigma=0.5).eval()
    x = load_images("digits").batch(torch.arange(20))
    found = _uncalibrated(learner, x, torch.Generator().manual_seed(5))
    y = learner.reconstruct(x, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(found.pop("misfit"), misfit(x, y), rtol=1e-5, atol=1e-4)
    assert set(found) == {"own", "authors", "reconstruction"}
    for kind, values in found.items():
        alone = score(learner, x, kind, generator=torch.Generator().manual_seed(5))
        torch.testing.assert_close(values, alone, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["knn", "pca", "gmm", "detector-fast"])
def test_cheap_detectors_are_rows_that_find_what_is_easy(name: str) -> None:
    digits = load_images("digits", split="all")
    assert digits.labels is not None
    normal = torch.nonzero(digits.labels == 1)[:, 0]
    test = digits.subset(torch.cat([normal[130:], torch.nonzero(digits.labels == 0)[:40, 0]]))
    sets = digits.subset(normal[:100]), digits.subset(normal[100:130])
    found = detections(baseline_scores(name, *sets, test, 0), anomalies_in(test, 0))
    assert found["own"].auroc > (0.7 if name == "gmm" else 0.95)
    assert found["own"].auroc < 1 or found["own"].auprc == 1
    assert ("calibrated" in found) == (name != "gmm")
    assert {"auprc_own", "chance"} <= figures_of(found).keys()
