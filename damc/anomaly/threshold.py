"""From scores to decisions: a threshold with a known rate of false alarms, and p-values.

Both compare a new score with those of m normal rows, each scored by parts that were not fitted to
it or calibrated on it. A new normal row is as likely to take any place among them, so that the
share of alarms is known before any anomaly is seen (conformal prediction, Vovk et al. 2005).
"""

from __future__ import annotations

__all__ = ["Threshold"]

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from damc.errors import BadInput


@dataclass(frozen=True)
class Threshold:
    """The `quantile` of normal scores, of which fresh normal rows exceed a share 1 - quantile.

    Attributes:
        normal: scores of normal rows, ``(m,)``.
        quantile: share of fresh normal rows not above the threshold, on average over such
            samples of m. With m < quantile / (1 - quantile) rows, which is 19 for 0.95, no score
            is that rare, and the threshold is their largest.

    Example:
        >>> threshold = Threshold(np.arange(1.0, 100), 0.95)
        >>> round(threshold.value, 2), threshold.p_values(np.array([0.0, 98.5, 200]))
        (95.0, array([1.  , 0.02, 0.01]))
    """

    normal: NDArray[Any]
    quantile: float

    def __post_init__(self) -> None:
        if self.normal.ndim != 1 or not len(self.normal):
            raise BadInput(f"normal scores must have shape (m,), got {self.normal.shape}")

    @property
    def value(self) -> float:
        """Scores above it are anomalies: at place (m + 1) quantile among the sorted ones."""
        edge = float(np.quantile(self.normal, self.quantile, method="weibull"))
        # And a hair more: rounding, which differs with the batch, must not tip that very row.
        return edge + 1e-6 * abs(edge)

    def p_values(self, scores: NDArray[Any]) -> NDArray[np.float64]:
        """How often a normal row scores as high, ``(n,)``: (1 + #{normal >= score}) / (m + 1)."""
        below = np.searchsorted(np.sort(self.normal), scores, side="left")
        share = (1.0 + len(self.normal) - below) / (len(self.normal) + 1.0)
        return np.asarray(share, np.float64)

    def false_alarms(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds on the rate of false alarms of this threshold: its central `level` interval.

        The rate varies with the m rows that the threshold was taken from, by the distribution
        Beta((m + 1) (1 - quantile), (m + 1) quantile).
        """
        from scipy.stats import beta

        m = len(self.normal)
        place = min((m + 1) * self.quantile, m)
        rate = beta(m + 1 - place, place)
        low, high = rate.ppf([(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)
