"""Cheap detectors beside the learned ones, so that a table shows what a model adds to them."""

from __future__ import annotations

__all__ = ["BASELINES", "baseline_scores"]

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from damc.anomaly.features import Projection, pixels
from damc.anomaly.neighbors import nearest
from damc.anomaly.scores import FLOOR, Calibration, detail_of, misfit
from damc.data import Images

_NEIGHBORS = 5
_DIRECTIONS = 50  # of pixels, in which neighbors and mixtures are found
_PLANE = 30  # of pixels, whose reconstruction errors count
_MIXTURE = 20  # Gaussians

Scores = dict[str, Tensor]


def baseline_scores(name: str, train: Images, normal: Images, test: Images, seed: int) -> Scores:
    """The scores of the test images by one of `BASELINES`, ``(N,)`` each.

    Args:
        name: which.
        train: normal images to learn.
        normal: others, to calibrate on.
        test: images to score.
        seed: of everything random.
    """
    return BASELINES[name](train, normal, test, seed)


def _knn(train: Images, normal: Images, test: Images, seed: int) -> Scores:
    """Mean distance to the 5 nearest in 50 main directions of the pixels, and calibrated."""
    plane = Projection.fit(pixels(_all(train)), _DIRECTIONS)
    points = plane(pixels(_all(train)))[:, :-1]

    def distance(x: Tensor) -> Tensor:
        return nearest(plane(pixels(x))[:, :-1], points, _NEIGHBORS)[0].mean(1).clamp_min(1e-6)

    return _calibrated(distance, _all(normal), _all(test))


def _pca(train: Images, normal: Images, test: Images, seed: int) -> Scores:
    """Misfit of the reconstruction from 30 main directions, and calibrated."""
    plane = Projection.fit(_all(train).flatten(1), _PLANE)

    def error(x: Tensor) -> Tensor:
        found = misfit(x, plane.inverse(x.flatten(1)).view_as(x))
        return found.clamp_min(FLOOR * x[0].numel())

    return _calibrated(error, _all(normal), _all(test))


def _gmm(train: Images, normal: Images, test: Images, seed: int) -> Scores:
    """Minus the log density of 20 Gaussians in 50 main directions of the pixels."""
    from sklearn.mixture import GaussianMixture

    plane = Projection.fit(pixels(_all(train)), _DIRECTIONS)
    mixture = GaussianMixture(_MIXTURE, reg_covar=1e-3, random_state=seed)
    mixture.fit(plane(pixels(_all(train)))[:, :-1].numpy())
    density = mixture.score_samples(plane(pixels(_all(test)))[:, :-1].numpy())
    return {"own": -torch.from_numpy(density)}


def _detector(quality: str) -> Callable[[Images, Images, Images, int], Scores]:
    """`damc.AnomalyDetector` as a user calls it, fitted to all normal images."""

    def scores(train: Images, normal: Images, test: Images, seed: int) -> Scores:
        from damc.anomaly.detector import AnomalyDetector

        x = torch.cat([_all(train), _all(normal)]).numpy()
        detector = AnomalyDetector(quality=quality, random_state=seed).fit(x)
        found = torch.from_numpy(detector.decision_function(_all(test).numpy()).astype(np.float64))
        return {"own": found, "calibrated": found}

    return scores


BASELINES: dict[str, Callable[[Images, Images, Images, int], Scores]] = {
    "knn": _knn,
    "pca": _pca,
    "gmm": _gmm,
    "detector-fast": _detector("fast"),
    "detector-balanced": _detector("balanced"),
    "detector-best": _detector("best"),
}
"""Detectors by the names of their rows."""


def _calibrated(raw: Callable[[Tensor], Tensor], normal: Tensor, test: Tensor) -> Scores:
    found = raw(test)
    calibration = Calibration.of(raw(normal), detail_of(normal))
    return {"own": found, "calibrated": calibration.score_errors(found, detail_of(test))}


def _all(images: Images) -> Tensor:
    """All images at once, ``(N, C, H, W)``."""
    return images.batch(torch.arange(len(images)))
