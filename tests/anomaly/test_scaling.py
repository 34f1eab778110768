"""What arrays of images are taken for: where their channels are, and which range they have."""

from __future__ import annotations

import numpy as np
import pytest

from damc import AnomalyDetector
from damc.anomaly.scaling import layout
from damc.errors import BadInput


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ((5, 28, 20), (5, 1, 28, 20)),
        ((5, 28, 20, 1), (5, 1, 28, 20)),
        ((5, 28, 20, 3), (5, 3, 28, 20)),
        ((5, 28, 20, 4), (5, 4, 28, 20)),  # RGBA
        ((5, 3, 28, 20), (5, 3, 28, 20)),
        ((5, 4, 28, 20), (5, 4, 28, 20)),
        ((5, 16, 4, 4), (5, 16, 4, 4)),  # maps of features
    ],
)
def test_channels_stand_first(given: tuple[int, ...], taken: tuple[int, ...]) -> None:
    assert layout(np.zeros(given, np.uint8)).shape == taken


def test_bytes_are_not_scored_by_a_detector_of_16_bits() -> None:
    """In its range they are all black, and every image would be an anomaly."""
    images = np.random.default_rng(0).integers(0, 2**16, (30, 12, 12)).astype(np.uint16)
    detector = AnomalyDetector(random_state=0).fit(images)
    assert detector.predict(images[:2]).tolist() == [0, 0]
    with pytest.raises(BadInput, match="images are bytes"):
        detector.predict((images[:2] // 256).astype(np.uint8))


def test_a_bare_image_of_bytes_is_asked_about() -> None:
    image = np.random.default_rng(0).integers(0, 255, (28, 28)).astype(np.uint8)
    with pytest.warns(UserWarning, match=r"28 rows .* an image"):
        AnomalyDetector(random_state=0).fit(image)
