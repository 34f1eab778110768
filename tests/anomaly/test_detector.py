"""The detector keeps scikit-learn's and PyOD's contract, and finds anomalies."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import damc
from damc import DAMC, AnomalyDetector, BadInput
from damc.anomaly.parts import NetworkScore
from damc.anomaly.probabilities import confidence
from damc.anomaly.scaling import Columns, Pixels, scaling_from, settings_of
from damc.anomaly.sizing import network_shape, preset_for_images, preset_for_vectors
from damc.data import load_images
from damc.learn.presets import find_preset
from damc.randomness import SharedNoise

QUICK: dict[str, Any] = {
    "iterations": 1,
    "samples": 1,
    "random_state": 0,
    "settings": {"posterior_steps": 1, "prior_steps": 1, "updates": 1, "test_steps": 1},
}


@pytest.fixture(scope="module")
def rows() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(50, 5)) * [1, 10, 0.1, 5, 1] + 3


@pytest.fixture(scope="module")
def fitted(rows: np.ndarray[Any, Any]) -> AnomalyDetector:
    return AnomalyDetector(**{**QUICK, "iterations": 10, "samples": 2}).fit(rows)


@pytest.mark.parametrize("parameters", [{"random_state": 0}, QUICK], ids=["fast", "network"])
def test_it_is_an_estimator_of_scikit_learn(parameters: dict[str, Any]) -> None:
    failed = [
        result["check_name"]
        for result in check_estimator(AnomalyDetector(**parameters), on_fail=None, on_skip=None)
        if result["status"] not in ("passed", "skipped")
    ]
    assert not failed


def test_beside_the_detectors_of_pyod() -> None:
    """One loop over four detectors; malignant tumours are the anomalies, only benign are learned.

    The standard error of an AUROC of 0.9 on these 107 and 212 rows is 0.02 (Hanley and McNeil).
    """
    auto_encoder = pytest.importorskip("pyod.models.auto_encoder").AutoEncoder
    from pyod.models.ecod import ECOD
    from pyod.models.iforest import IForest

    X, y = load_breast_cancer(return_X_y=True)
    benign = np.random.RandomState(0).permutation(np.flatnonzero(y == 1))
    train, test = X[benign[:250]], np.concatenate([X[benign[250:]], X[y == 0]])
    anomalous = np.concatenate([np.zeros(len(benign) - 250), np.ones(np.sum(y == 0))])
    detectors = {
        "damc": AnomalyDetector(random_state=0),
        "damc with a network": AnomalyDetector(iterations=60, samples=2, random_state=0),
        "IForest": IForest(random_state=0),
        "ECOD": ECOD(),
        "AutoEncoder": auto_encoder(epoch_num=3, verbose=0, random_state=0),
    }
    area = {}
    for name, detector in detectors.items():
        detector.fit(train)
        scores = detector.decision_function(test)
        assert scores.shape == (len(test),) and detector.decision_scores_.shape == (250,)
        assert set(detector.predict(test)) <= {0, 1}
        assert np.array_equal(detector.labels_, detector.decision_scores_ > detector.threshold_)
        assert detector.predict_proba(test).shape == (len(test), 2)
        area[name] = roc_auc_score(anomalous, scores)
    # Three standard errors below 0.9.
    assert area["damc"] > 0.84 and area["damc with a network"] > 0.84, area
    ours = detectors["damc"]
    assert roc_auc_score(anomalous, ours.score_samples(test)) < 0.16
    # 0.95 of normal rows stay below the threshold, up to that of 125 others and 107 new ones.
    alarms = ours.predict(test)[anomalous == 0].mean()
    assert abs(alarms - 0.05) < 3 * (0.05 * 0.95 * (1 / 125 + 1 / 107)) ** 0.5, alarms


def test_a_networks_threshold_is_a_quantile_of_rows_that_nothing_was_fitted_to(
    rows: np.ndarray[Any, Any], fitted: AnomalyDetector
) -> None:
    held = np.random.RandomState(0).permutation(50)[:10]  # five calibrate, five give the threshold
    scores = fitted.decision_function(rows[held])
    assert np.allclose(fitted.normal_scores_, scores[5:], rtol=1e-4)
    assert (scores[5:] <= fitted.threshold_).all()  # five rows cannot tell what one in 20 does
    part = torch.from_numpy(fitted.scaling_(rows[held[:5]]))
    raw = torch.stack([each.score(part).double() for each in fitted.parts_], 1)
    assert torch.allclose(fitted.fitted_.combination.mean, raw.mean(0), rtol=1e-4)
    looser = AnomalyDetector(**{**QUICK, "quantile": 0.5}).fit(rows)
    assert np.sum(looser.normal_scores_ > looser.threshold_) == 2


def test_a_score_depends_on_its_own_row_alone(
    rows: np.ndarray[Any, Any], fitted: AnomalyDetector
) -> None:
    scores = fitted.decision_function(rows)
    alone = np.concatenate([fitted.decision_function(row[None]) for row in rows[:5]])
    assert np.allclose(scores[:5], alone, rtol=1e-4, atol=1e-5)
    assert np.allclose(scores[::-1], fitted.decision_function(rows[::-1]), rtol=1e-4, atol=1e-5)
    # Without the shared noise it would not: the learner's own scores move with their place.
    x = torch.from_numpy(fitted.scaling_(rows))
    assert fitted.learner_ is not None
    draw = fitted.learner_.anomaly_score
    there = draw(x, generator=torch.Generator().manual_seed(0)).numpy()
    back = draw(x.flip(0), generator=torch.Generator().manual_seed(0)).flip(0).numpy()
    assert not np.allclose(there, back, rtol=1e-3)


def test_samples_are_averaged_and_differ(
    rows: np.ndarray[Any, Any], fitted: AnomalyDetector
) -> None:
    """The variance of a mean of K scores over seeds falls with K, so its samples are not one."""
    assert fitted.learner_ is not None
    x = torch.from_numpy(fitted.scaling_(rows[:10]))
    spread = {}
    for samples in (1, 8):
        parts = [NetworkScore(fitted.learner_, "joint", samples, seed) for seed in range(6)]
        spread[samples] = float(torch.stack([part.score(x) for part in parts]).var(0).mean())
    assert spread[8] < spread[1] / 2  # an eighth, but for six draws; equal if they were one


def test_clone_and_pipeline(rows: np.ndarray[Any, Any], fitted: AnomalyDetector) -> None:
    assert clone(fitted).get_params() == fitted.get_params()
    pipeline = make_pipeline(StandardScaler(), AnomalyDetector(**QUICK)).fit(rows)
    assert pipeline.predict(rows).shape == (50,)
    assert np.array_equal(-pipeline.score_samples(rows), pipeline.decision_function(rows))


def test_the_joint_score_has_the_likelihoods_own_weight(fitted: AnomalyDetector) -> None:
    x = torch.randn(4, 1, 1, 5, generator=torch.Generator().manual_seed(0))
    learner = fitted.learner_
    assert learner is not None
    noise = SharedNoise()
    noise.manual_seed(3)
    z = learner.infer(x, generator=noise)
    error = (x - learner.model.decoder(z)).square().flatten(1).sum(1)
    prior = learner.model.prior.energy(z) + z.square().sum(1) / 2
    expected = {"joint": error / (2 * 0.5**2) + prior, "authors": error + prior}
    for kind, value in expected.items():
        part = NetworkScore(learner, kind, samples=1, seed=3)
        assert torch.allclose(part.score(x), value, rtol=1e-4)


@pytest.mark.parametrize("method", ["linear", "unify"])
def test_probabilities_rise_with_scores(
    rows: np.ndarray[Any, Any], fitted: AnomalyDetector, method: str
) -> None:
    scores = fitted.decision_scores_
    p = fitted.probabilities(scores, method=method)
    assert np.allclose(p.sum(1), 1) and p.min() >= 0 and p.max() <= 1
    assert (np.diff(p[np.argsort(scores), 1]) >= 0).all()
    if method == "linear":
        assert p[scores.argmax(), 1] == 1 and p[scores.argmin(), 1] == 0
    shown = fitted.predict_proba(rows, method=method)
    assert np.array_equal(shown, fitted.probabilities(fitted.decision_function(rows), method))
    far = fitted.predict_proba(rows * 1e4, method=method)
    assert (far[:, 1] == 1).all()


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (np.zeros((6, 8, 8), np.uint8), (1, 8, 8)),
        (np.zeros((6, 3, 16, 20), np.float32), (3, 16, 20)),
        (np.zeros((6, 10, 12, 3), np.uint8), (3, 10, 12)),
        (torch.zeros(6, 1, 18, 18), (1, 18, 18)),
    ],
)
def test_images_of_any_shape(images: Any, shape: tuple[int, int, int]) -> None:
    detector = AnomalyDetector(**QUICK).fit(images)
    assert detector.scaling_.shape == shape
    assert detector.learner_.networks.shape == shape
    assert detector.decision_function(images).shape == (6,)
    assert detector.reconstruct(images).shape == (6, *shape)


def test_confidence_is_that_of_pyod(rows: np.ndarray[Any, Any]) -> None:
    knn = pytest.importorskip("pyod.models.knn").KNN(contamination=0.1).fit(rows)
    new = np.concatenate([rows[:10] + 0.1, rows[:5] * 3])
    scores, labels = knn.decision_function(new), knn.predict(new)
    theirs = knn.predict_confidence(new)
    assert np.allclose(confidence(scores, knn.decision_scores_, labels, 0.1), theirs)
    detector = AnomalyDetector(contamination=0.1, random_state=0).fit(rows)
    ours = detector.predict_confidence(rows * 30)
    assert detector.predict(rows * 30).all() and (ours > 0.99).all()


def test_it_works_in_the_ensembles_of_pyod(rows: np.ndarray[Any, Any]) -> None:
    """FeatureBagging fits clones to some columns; SUOD fits several detectors side by side."""
    bagging = pytest.importorskip("pyod.models.feature_bagging").FeatureBagging
    suod = pytest.importorskip("pyod.models.suod").SUOD
    from pyod.models.knn import KNN

    odd = np.concatenate([rows[:5], rows[:5] + 30])
    bag = bagging(AnomalyDetector(random_state=0), n_estimators=3, random_state=0).fit(rows)
    assert bag.decision_function(odd)[5:].min() > bag.decision_function(odd)[:5].max()
    both = [AnomalyDetector(random_state=0), KNN()]
    several = suod(base_estimators=both, n_jobs=1, combination="average", verbose=False)
    several.fit(rows)
    assert several.predict(odd)[5:].all() and several.decision_function(odd).shape == (10,)


def test_networks_of_large_images_stay_small(tmp_path: Path) -> None:
    """They see images averaged down to 32 pixels: below 6 million parameters at any size."""
    shapes = {
        (3, 224, 224): (3, 32, 32),
        (1, 600, 1024): (1, 20, 32),
        (1, 28, 28): (1, 28, 28),
        (3, 33, 20): (3, 32, 20),
        (1, 1024, 8): (1, 32, 4),
    }
    for shape, small in shapes.items():
        assert network_shape(shape) == small
    x = np.random.default_rng(0).random((24, 3, 60, 40)).astype(np.float32)
    detector = AnomalyDetector(quality="balanced", iterations=1, samples=1, random_state=0).fit(x)
    assert detector.learner_ is not None
    assert sum(p.numel() for p in detector.learner_.parameters()) < 6e6
    assert detector.reconstruct(x[:2]).shape == (2, 3, 32, 20)
    assert detector.explain(x[:2]).shape == (2, 3, 60, 40)
    again = damc.load(detector.save(tmp_path / "run"))
    assert np.array_equal(again.decision_function(x), detector.decision_function(x))


def test_a_thousand_images_are_scored_in_a_second() -> None:
    """5,000 images of 28x28 to compare with; the floor leaves room for a busy machine."""
    x = np.random.default_rng(0).integers(0, 256, (6000, 28, 28), np.uint8)
    detector = AnomalyDetector(random_state=0).fit(x[:5000])
    assert len(detector.parts_[0].neighbors.points) == 5 * 4000
    times = []
    for _ in range(3):
        start = time.process_time()
        detector.decision_function(x[5000:])
        times.append(time.process_time() - start)
    assert min(times) < 2, times


def test_digits_that_were_not_learned_are_found() -> None:
    """Pixels of 0 to 16, a range that no image format has, learned and scored as they are."""
    digits = load_digits()
    ones, zeros = digits.images[digits.target == 1], digits.images[digits.target == 0]
    quick = {"posterior_steps": 5, "prior_steps": 5, "updates": 1, "test_steps": 3}
    detector = AnomalyDetector(iterations=60, samples=1, random_state=0, settings=quick)
    detector.fit(ones[:120])
    scores = detector.decision_function(np.concatenate([ones[120:], zeros[:62]]))
    found = np.concatenate([np.zeros(len(ones) - 120), np.ones(62)])
    assert roc_auc_score(found, scores) > 0.9
    with pytest.raises(BadInput, match="vectors|shape"):
        detector.predict(ones.reshape(len(ones), -1))
    with pytest.raises(BadInput, match="1x8x8"):
        detector.predict(ones[:, :7])


@pytest.mark.parametrize(
    ("X", "said"),
    [
        (np.full((20, 3), np.nan), "NaN"),
        (np.full((20, 8, 8), np.inf), "inf"),
        (np.zeros((0, 8, 8)), "shape"),
        (np.zeros((1, 8, 8)), "n_samples = 1"),
        ([np.zeros((8, 8)), np.zeros((8, 9))], "8x8, 8x9"),
        (np.zeros((20, 8, 8), complex), "complex"),
    ],
)
def test_data_that_cannot_be_learned(X: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as error:
        AnomalyDetector(**QUICK).fit(X)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quantile": 1.0}, "between 0 and 1"),
        ({"held_out": 0}, "between 0 and 1"),
        ({"iterations": 0}, "iterations"),
        ({"samples": 0}, "samples"),
        ({"quality": "fast"}, "which has no network"),
        ({"quality": "good"}, "fast, balanced, best"),
        ({"contamination": 0.5}, "contamination"),
        ({"method": "dmac"}, "dmac"),
        ({"preset": "mnist-small"}, "vectors"),
        ({"settings": {"sgma": 1}}, "sgma"),
        ({"score_kind": "jonit"}, "jonit"),
    ],
)
def test_parameters_that_cannot_be(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        AnomalyDetector(**{**QUICK, **change}).fit(np.zeros((20, 3)))


def test_ranges_of_pixels() -> None:
    bytes_ = np.array([[[[0, 255], [51, 204]]]], np.uint8)
    scaled = Pixels.measure(bytes_)(bytes_)
    assert np.allclose(scaled, [[[[-1, 1], [-0.6, 0.6]]]])
    unit = bytes_ / 255
    assert np.allclose(Pixels.measure(unit)(unit), scaled)
    assert np.allclose(Pixels.measure(unit)(bytes_), scaled)
    assert np.allclose(Pixels.measure(2 * unit - 1)(2 * unit - 1), scaled)
    assert np.allclose(Pixels.measure(unit * 16 - 3)(unit * 16 - 3), scaled)
    # What lies outside a measured range may be an anomaly; outside a known one it is a mistake.
    assert Pixels.measure(unit * 16)(unit * 32).max() == 3
    with pytest.raises(BadInput, match="range of 0 to 1"):
        Pixels.measure(unit)(unit * 16)
    with pytest.raises(BadInput, match="0 to 255"):
        Pixels.measure(bytes_)(unit)


def test_columns_are_standardized() -> None:
    X = np.array([[1.0, 7, 0], [3, 7, 0], [5, 7, 0]])
    columns = Columns.measure(X)
    scaled = columns(X)
    assert scaled.shape == (3, 1, 1, 3) and np.allclose(scaled[..., 1:], 0)
    assert np.allclose(scaled[..., 0].std(), 1) and np.allclose(scaled[..., 0].mean(), 0)
    assert columns(X + np.array([0, 2, 0]))[0, 0, 0, 1] == 2
    for scaling in (columns, Pixels((1, 2, 3), 0.0, 16.0, False)):
        assert scaling_from(json.loads(json.dumps(settings_of(scaling)))) == scaling


def test_networks_come_from_the_shape() -> None:
    assert [preset_for_vectors(d).networks.latent_dim for d in (1, 4, 30, 64, 5000)] == [
        2,
        2,
        5,
        8,
        24,
    ]
    kinds = {(1, 8, 8): "mlp", (1, 28, 28): "hybrid", (3, 32, 32): "hybrid", (3, 30, 30): "mlp"}
    for shape, kind in kinds.items():
        networks = preset_for_images(shape).networks
        assert networks.decoder["kind"] == kind
        assert networks.build_decoder()(torch.zeros(2, networks.latent_dim)).shape == (2, *shape)
    assert preset_for_vectors(3).networks.decoder["last"] is None


def test_a_detector_sees_images_where_they_are() -> None:
    """`svhn-small` moves them, for samples; what has moved may be an anomaly."""
    assert find_preset("svhn-small").shift == 2
    for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8)):
        preset = preset_for_images(shape)
        assert preset.shift == 0 and DAMC.settings_from(preset.recipe).sigma == preset.recipe.sigma


def test_fitting_and_scoring_leave_torch_as_it_was(rows: np.ndarray[Any, Any]) -> None:
    torch.manual_seed(7)
    before, randn = torch.get_rng_state(), torch.randn
    detector = AnomalyDetector(**QUICK).fit(rows)
    scores = detector.decision_function(rows)
    detector.reconstruct(rows)
    assert torch.equal(torch.get_rng_state(), before) and torch.randn is randn
    torch.rand(3)
    assert np.array_equal(detector.decision_function(rows), scores)


def test_a_detector_without_a_measured_range_reads_floats_as_everything_else_does() -> None:
    images = load_images("digits")
    detector = AnomalyDetector("digits-small", **QUICK).fit(images)
    x = images.batch(torch.arange(12)).numpy()
    wanted = detector.decision_function(x)
    assert np.allclose(detector.decision_function(x / 2 + 0.5), wanted, atol=1e-3)
    rounded = np.round(x * 127.5 + 127.5).astype(np.uint8)
    assert np.allclose(detector.decision_function(rounded), wanted, atol=0.05)
    # The range is that of the whole array, whatever a part of it holds.
    bright = np.concatenate([np.tile(x, (22, 1, 1, 1))[:256], np.abs(x[:1])])
    assert detector.decision_function(bright)[-1] == pytest.approx(
        detector.decision_function(np.concatenate([x, np.abs(x[:1])]))[-1], rel=1e-2
    )
    with pytest.raises(BadInput, match="images must be bytes"):
        detector.decision_function(x * 100)
