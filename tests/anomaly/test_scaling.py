"""What arrays of images are taken for: where their channels are, and which range they have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_columns_of_any_unit_tell_the_same(unit: float) -> None:
    """Squares of the largest and the smallest numbers are none: all rows once looked normal."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    off = rows[:4] + 20
    plain = AnomalyDetector(random_state=0).fit(rows)
    detector = AnomalyDetector(random_state=0).fit(rows * unit)
    assert detector.predict(off * unit).tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(
        detector.decision_function(off * unit), plain.decision_function(off), rtol=1e-4
    )


def test_what_is_no_data_is_one_sentence() -> None:
    detector = AnomalyDetector(random_state=0)
    with pytest.raises(BadInput, match=r"X must be a table .n, d. or images .* got shape"):
        detector.fit(np.zeros((1, 2, 3, 8, 8)))
    for name in ("contamination", "quantile"):
        with pytest.raises(BadInput, match=f"{name} must .*, got 'much'"):
            AnomalyDetector(**{name: "much"}).fit(np.zeros((9, 2)))


def test_a_tensor_with_a_gradient_is_a_table_too() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 2))
    detector = AnomalyDetector(random_state=0).fit(torch.tensor(rows, requires_grad=True))
    assert detector.predict(rows[:3] + 30).tolist() == [1, 1, 1]
