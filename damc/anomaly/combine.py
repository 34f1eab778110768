"""Several scores as one: each in units of its spread on normal data, and any of them may speak.

A simple image lies near others by having little in it, and so seems normal to every distance: an
error or a distance grows with what there is in an image. So each part asks twice, how far its score
lies above that of normal data, and how far above what is expected for so much detail c,

    u_p = (s_p - mean_p) / spread_p,
    v_p = (s_p - mean_p - slope_p (log c - mean log c) / 2) / residual_p,

with the slope of a straight line fitted to normal data. Half of it is taken off: with all of it,
busy anomalies go free. The combined score is log mean exp over all u_p and v_p.
"""

from __future__ import annotations

__all__ = ["Combination"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.errors import BadInput

_SHARE = 0.5  # of the slope


@dataclass(frozen=True)
class Combination:
    """The combined score of parts s_1 ... s_P, without a label seen.

    Data are about as anomalous as the part that finds them most so. A part that sees nothing
    unusual takes nothing away, as it would in a sum; and one that is not sure adds to another,
    which a maximum would ignore. A single part of data that have no detail is only standardized.

    Attributes:
        mean: of each part on normal data that it was not fitted to, ``(P,)``.
        spread: its standard deviation there, ``(P,)``.
        slope: what is taken off for a unit of log detail, ``(P,)``.
        residual: the standard deviation of what is left, ``(P,)``.
        detail: the mean log detail, and the 99th percentile up to which it counts, ``(2,)``.
    """

    mean: Tensor
    spread: Tensor
    slope: Tensor
    residual: Tensor
    detail: Tensor

    @classmethod
    def fit(cls, scores: Tensor, detail: Tensor | None = None) -> Combination:
        """From scores of normal data, ``(n, P)``, and their log detail, ``(n,)``, if any."""
        if scores.ndim != 2 or not len(scores):
            raise BadInput(f"scores must have shape (n, P) with n >= 1, got {tuple(scores.shape)}")
        c = torch.zeros_like(scores[:, 0]) if detail is None else detail.to(scores)
        mean, center = scores.mean(0), c.mean()
        s, c0 = scores - mean, (c - center)[:, None]
        # Drawn towards 0, which matters only where few or equal details say little.
        slope = _SHARE * (c0 * s).sum(0) / (c0.square().sum() + 1)
        most = torch.quantile(c, 0.99)
        return cls(mean, _spread(s), slope, _spread(s - slope * c0), torch.stack([center, most]))

    def standard(self, scores: Tensor) -> Tensor:
        """The scores in units of their spread, u, both ``(B, P)``."""
        return (scores - self.mean) / self.spread

    def __call__(self, scores: Tensor, detail: Tensor | None = None) -> Tensor:
        """The combined score of scores ``(B, P)`` and log details ``(B,)``, ``(B,)``."""
        u = self.standard(scores)
        center, most = self.detail.to(scores)
        c = torch.zeros_like(scores[:, 0]) if detail is None else detail.to(scores)
        expected = self.mean + self.slope * (c.clamp_max(most) - center)[:, None]
        v = (scores - expected) / self.residual
        return torch.logsumexp(torch.cat([u, v], 1), 1) - math.log(2 * scores.shape[1])


def _spread(centered: Tensor) -> Tensor:
    found = centered.square().mean(0).sqrt()
    return torch.where(found > 1e-6, found, torch.ones_like(found))
