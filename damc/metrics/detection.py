"""How well a score tells anomalies from normal data, and what bounds that number has."""

from __future__ import annotations

__all__ = ["Detection", "auprc", "auroc", "average_precision", "detection_scores", "lowest_auprc"]

import math
from dataclasses import dataclass

from torch import Tensor

from damc.errors import BadInput


@dataclass(frozen=True)
class Detection:
    """All detection metrics of one set of scores, with the values to compare them with."""

    auprc: float
    """Area under the precision-recall curve by the trapezoidal rule, as the papers report it."""
    average_precision: float
    """The same area as a sum of steps, which does not interpolate between thresholds."""
    auroc: float
    """Area under the ROC curve; chance is 0.5."""
    chance: float
    """Share of anomalies: the AUPRC of random scores."""
    lowest: float
    """The AUPRC when every anomaly is ranked below every normal point."""
    normals: int
    anomalies: int


def detection_scores(labels: Tensor, scores: Tensor) -> Detection:
    """All metrics of this module at once.

    Args:
        labels: 1 or True for an anomaly, 0 or False for a normal point, (n,).
        scores: higher means more anomalous, (n,).
    """
    anomalies, n = _check(labels, scores)
    prevalence = anomalies / n
    return Detection(
        auprc=auprc(labels, scores),
        average_precision=average_precision(labels, scores),
        auroc=auroc(labels, scores),
        chance=prevalence,
        lowest=lowest_auprc(prevalence),
        normals=n - anomalies,
        anomalies=anomalies,
    )


def auprc(labels: Tensor, scores: Tensor) -> float:
    """Area under the precision-recall curve, by the trapezoidal rule.

    The MNIST anomaly tables of the paper and its peers are computed this way. It joins the points
    of the curve by straight lines, so with many equal scores it is too high: scores that are all
    equal give `(1 + prevalence) / 2` where `average_precision` gives the prevalence.

    Args:
        labels: 1 or True for an anomaly, 0 or False for a normal point, (n,).
        scores: higher means more anomalous, (n,).
    """
    from sklearn.metrics import auc, precision_recall_curve

    _check(labels, scores)
    precision, recall, _ = precision_recall_curve(*_numpy(labels, scores))
    return float(auc(recall, precision))


def average_precision(labels: Tensor, scores: Tensor) -> float:
    """Average precision `sum_k (R_k - R_{k-1}) P_k` over thresholds, from high scores to low.

    Args:
        labels: 1 or True for an anomaly, 0 or False for a normal point, (n,).
        scores: higher means more anomalous, (n,).
    """
    from sklearn.metrics import average_precision_score

    _check(labels, scores)
    return float(average_precision_score(*_numpy(labels, scores)))


def auroc(labels: Tensor, scores: Tensor) -> float:
    """Area under the ROC curve: how often an anomaly scores higher than a normal point.

    Args:
        labels: 1 or True for an anomaly, 0 or False for a normal point, (n,).
        scores: higher means more anomalous, (n,).
    """
    from sklearn.metrics import roc_auc_score

    _check(labels, scores)
    return float(roc_auc_score(*_numpy(labels, scores)))


def lowest_auprc(prevalence: float) -> float:
    """The lowest AUPRC that any score can have: `1 + ((1 - p) / p) ln(1 - p)` for prevalence p.

    Even the worst ranking, all anomalies last, has some precision at full recall (Boyd et al.,
    Unachievable region in precision-recall space, 2012). A published value below this bound
    was computed on a different test set.
    """
    if not 0 < prevalence <= 1:
        raise BadInput(f"prevalence must lie in (0, 1], got {prevalence:g}")
    if prevalence == 1:
        return 1.0
    return 1 + (1 - prevalence) / prevalence * math.log1p(-prevalence)


def _numpy(labels: Tensor, scores: Tensor) -> tuple[object, object]:
    return labels.detach().cpu().bool().numpy(), scores.detach().cpu().double().numpy()


def _check(labels: Tensor, scores: Tensor) -> tuple[int, int]:
    """The number of anomalies and of points, once labels and scores are known to be usable."""
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise BadInput(
            "labels and scores must have one shape (n,), "
            f"got {tuple(labels.shape)} and {tuple(scores.shape)}"
        )
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise BadInput("labels must be 0 (normal) or 1 (anomaly), got other values")
    if not bool(scores.isfinite().all()):
        raise BadInput("scores must be finite, got NaN or infinity")
    anomalies, n = int(labels.sum()), len(labels)
    if not 0 < anomalies < n:
        raise BadInput(
            "labels must have at least one anomaly and one normal point, "
            f"got {anomalies} anomalies of {n}"
        )
    return anomalies, n
