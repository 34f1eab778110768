"""A detector on disk: what was saved comes back, and damage is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import damc
from damc import AnomalyDetector, BadInput

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
def images() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 256, (60, 8, 8), np.uint8)


@pytest.mark.parametrize("parameters", [{"random_state": 0}, QUICK], ids=["fast", "network"])
@pytest.mark.parametrize("kind", ["rows", "images"])
def test_a_saved_detector_is_the_same(
    request: pytest.FixtureRequest, parameters: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    X = request.getfixturevalue(kind)
    detector = AnomalyDetector(**parameters, contamination=0.1).fit(X)
    detector.save(tmp_path / "run")
    again = damc.load(tmp_path / "run")
    assert isinstance(again, AnomalyDetector)
    assert np.array_equal(again.decision_function(X), detector.decision_function(X))
    assert again.threshold_ == detector.threshold_
    assert np.array_equal(again.p_values(X), detector.p_values(X))
    assert np.array_equal(again.decision_scores_, detector.decision_scores_)
    assert np.array_equal(again.explain(X), detector.explain(X))
    assert again.part_scores(X).keys() == detector.part_scores(X).keys()
    looser = AnomalyDetector.from_run(tmp_path / "run", quantile=0.5)
    assert looser.threshold_ < again.threshold_


def test_damage_is_told(rows: np.ndarray[Any, Any], tmp_path: Path) -> None:
    AnomalyDetector(random_state=0).fit(rows).save(tmp_path / "run")
    file = tmp_path / "run" / "detector.json"
    saved = file.read_text()
    file.write_text(json.dumps({**json.loads(saved), "format": 1}))  # its scores were others
    with pytest.raises(BadInput, match="saved by a version that scores otherwise"):
        damc.load(tmp_path / "run")
    for text in ("{", json.dumps({**json.loads(saved), "parts": ["pixel"]})):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"detector\.json is damaged"):
            damc.load(tmp_path / "run")
    file.write_text(saved)
    tensors = tmp_path / "run" / "detector.safetensors"
    whole = tensors.read_bytes()
    for part in (whole[:-8], whole[:-1] + bytes([whole[-1] ^ 1])):
        tensors.write_bytes(part)
        with pytest.raises(BadInput, match=r"detector\.json is damaged"):
            damc.load(tmp_path / "run")
    tensors.unlink()
    with pytest.raises(BadInput, match=r"could not read .*detector\.safetensors: No such file"):
        damc.load(tmp_path / "run")


@pytest.mark.parametrize("kind", ["authors", "reconstruction", "calibrated", "own"])
def test_every_score_of_a_network_has_a_threshold_and_is_saved(
    rows: np.ndarray[Any, Any], kind: str, tmp_path: Path
) -> None:
    detector = AnomalyDetector(**QUICK, score_kind=kind).fit(rows)
    scores = detector.decision_function(rows)
    assert [part.name for part in detector.parts_] == [kind]
    assert (detector.normal_scores_ <= detector.threshold_).mean() >= 0.95
    again = AnomalyDetector.from_run(detector.save(tmp_path / "run"))
    assert np.array_equal(again.decision_function(rows), scores)
    with pytest.raises(BadInput, match="knows no test images"):
        AnomalyDetector.from_run(tmp_path / "run", score_kind="joint")
    joint = AnomalyDetector.from_run(tmp_path / "run", rows, score_kind="joint")
    assert [part.name for part in joint.parts_] == ["joint"]
    assert not np.allclose(joint.decision_function(rows), scores)
    with pytest.raises(BadInput, match=f"score_kind must be one of auto, {kind}"):
        AnomalyDetector.from_run(tmp_path / "run", rows, score_kind="neighbors")


def test_a_folder_of_another_run_is_left_alone(rows: np.ndarray[Any, Any], tmp_path: Path) -> None:
    AnomalyDetector(**QUICK).fit(rows).save(tmp_path / "run")
    before = (tmp_path / "run" / "detector.json").read_bytes()
    with pytest.raises(BadInput, match="holds a run"):
        AnomalyDetector(random_state=0).fit(rows).save(tmp_path / "run")
    assert (tmp_path / "run" / "detector.json").read_bytes() == before
