"""Scores as probabilities and as confidence, the way PyOD makes them."""

from __future__ import annotations

__all__ = ["confidence", "probabilities"]

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from damc.errors import BadInput


def probabilities(
    scores: NDArray[Any], own: NDArray[Any], method: str = "linear"
) -> NDArray[np.float32]:
    """Probabilities of (normal, anomalous), ``(n, 2)``.

    Args:
        scores: of data, ``(n,)``.
        own: of the data that a detector was fitted to, ``(m,)``.
        method: "linear", the place of a score between the least and the largest of `own`; "unify",
            the Gaussian tail beyond their mean (Kriegel et al. 2011).
    """
    if method == "linear":
        place = (scores - own.min()) / (float(np.ptp(own)) or 1.0)
    elif method == "unify":
        spread = (float(own.std()) or 1.0) * math.sqrt(2)
        place = torch.erf(torch.from_numpy((scores - own.mean()) / spread)).numpy()
    else:
        raise BadInput(f"method must be 'linear' or 'unify', got {method!r}")
    # A score's last digits differ with the batch that it was computed in.
    anomalous = np.clip(place, 0, 1).round(5)
    return np.stack([1 - anomalous, anomalous], axis=1)


def confidence(
    scores: NDArray[Any], own: NDArray[Any], labels: NDArray[Any], share: float
) -> NDArray[np.float64]:
    """How likely each label stays the same under small changes of the training data, ``(n,)``.

    With F the share of `own` up to a score, estimated as (1 + count) / (2 + m), a row is among the
    `share` most anomalous of m with the binomial probability of more than m (1 - share) successes
    (Perini et al., Quantifying the confidence of anomaly detectors, ECML 2020).

    Args:
        scores: of data, ``(n,)``.
        own: of the data that a detector was fitted to, ``(m,)``.
        labels: 1 for an anomaly, ``(n,)``.
        share: of anomalies, at this threshold.
    """
    from scipy.stats import binom

    m = len(own)
    below = np.searchsorted(np.sort(own), scores, side="right")
    anomalous = 1 - binom.cdf(m - int(m * share), m, (1 + below) / (2 + m))
    return np.asarray(np.where(labels == 1, anomalous, 1 - anomalous), np.float64)
