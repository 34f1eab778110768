"""What a run folder says about detecting: a saved detector, and normal images to judge by."""

from __future__ import annotations

__all__ = ["FORMAT", "MEMORY", "recall_detector", "unseen_images"]

import json
import math
import warnings
from pathlib import Path
from typing import Any

from damc.anomaly.scaling import scaling_from
from damc.anomaly.scores import Calibration
from damc.data import Images
from damc.errors import BadInput
from damc.train.origin import recall
from damc.train.run import Run

MEMORY = "detector.json"
"""The file of a run folder that makes it a saved detector."""

FORMAT = 2
"""What the numbers in it mean; another number where scores of the same images have changed."""


def recall_detector(run: Run, parameters: set[str]) -> dict[str, Any] | None:
    """What `AnomalyDetector.save` wrote into the folder, checked, or None.

    Args:
        run: the run folder.
        parameters: names of the detector's parameters, all of which it has.
    """
    path = run.path / MEMORY
    if not path.is_file():
        return None
    try:
        memory = json.loads(path.read_bytes())
        current = memory.get("format", 1) == FORMAT
        if current:
            _check(memory, parameters)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is damaged: fit and save the detector again") from error
    if not current:
        raise BadInput(
            f"{path} was saved by a version that scores otherwise: fit and save the detector again"
        )
    return dict(memory)


def _check(memory: dict[str, Any], parameters: set[str]) -> None:
    """Raises whatever comes first if something is missing or cannot be."""
    scaling_from(memory["scaling"])
    Calibration(*(memory["calibration"] or (0.0,) * 6))
    scores = [memory["normal_scores"], memory["decision_scores"], [memory["seed"]]]
    finite = all(part and all(map(math.isfinite, part)) for part in scores)
    if not finite or {*memory["parameters"]} != parameters:
        raise ValueError("parameters or scores")


def unseen_images(run: Run, root: Path | None, limit: int) -> Images:
    """Normal images that a run has not learned from, to take the threshold from."""
    origin = recall(run, root)
    if origin is None:
        raise BadInput(
            f"{run.path} was trained from Python and knows no test images: "
            "give normal images for the threshold"
        )
    unseen = origin.unseen()
    if unseen.note:
        warnings.warn(
            f"the threshold comes from images that the run has learned: {unseen.note}",
            stacklevel=3,
        )
    return unseen.images.subset(slice(limit))
