"""The Anomalies tab: fit a folder, score others, and stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from damc.app import anomalies
from damc.app.jobs import Job, Stopped
from damc.app.words import scores_table
from damc.errors import BadInput


@pytest.fixture
def folder(tmp_path: Path) -> list[Path]:
    random, paths = np.random.default_rng(0), []
    for k in range(24):
        pixels = random.normal(100, 5, (12, 12)).clip(0, 255).astype(np.uint8)
        paths.append(tmp_path / f"{k:02d}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def test_a_detector_of_dropped_pictures_finds_the_odd_one(
    folder: list[Path], tmp_path: Path
) -> None:
    shares = []
    detector = anomalies.fit_detector(
        folder[:-2], Job(), progress=lambda share, what: shares.append(share)
    )
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] < 1
    odd = tmp_path / "odd.png"
    pixels = np.full((12, 12), 100, np.uint8)
    pixels[4:7, 4:7] = 255
    Image.fromarray(pixels).save(odd)
    found = anomalies.score(detector, [*folder[-2:], odd])
    assert found.detection.names[found.detection.order[0]] == "odd.png"
    assert found.maps.shape == (3, 12, 12) and found.images.shape == (3, 1, 12, 12)
    assert found.maps[2, 3:8, 3:8].mean() > found.maps[2].mean()
    assert "odd.png" in scores_table(found.detection, detector.false_alarms_)


def test_a_stopped_job_ends_the_fit(folder: list[Path]) -> None:
    job = Job()
    job.stop()
    with pytest.raises(Stopped):
        anomalies.fit_detector(folder, job)


def test_the_example_tells_sevens_from_other_digits() -> None:
    detector, pictures = anomalies.example(Job())
    found = anomalies.score(detector, pictures).detection
    sevens = np.array([name.startswith("digit 7") for name in found.names])
    assert sevens.sum() == 4 and len(sevens) == 12
    assert found.scores[sevens].max() < found.scores[~sevens].min()
    assert found.anomalous[~sevens].all()


def test_missing_pieces_are_said_in_words(folder: list[Path]) -> None:
    with pytest.raises(BadInput, match="a detector must be fitted first"):
        anomalies.score(None, folder)
    with pytest.raises(BadInput, match="at least 10 normal pictures, got 2"):
        anomalies.fit_detector(folder[:2], Job())
