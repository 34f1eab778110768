"""Several scores as one: each in units of its spread on normal data, and any of them may speak."""

from __future__ import annotations

__all__ = ["Combination"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.errors import BadInput


@dataclass(frozen=True)
class Combination:
    """The combined score of parts s_1 ... s_P, without a label seen:

        log mean_p exp((s_p - mean_p) / spread_p).

    Data are about as anomalous as the part that finds them most so. A part that sees nothing
    unusual takes nothing away, as it would in a sum; and one that is not sure adds to another,
    which a maximum would ignore. A single part is only standardized.

    Attributes:
        mean: of each part on normal data that it was not fitted to, ``(P,)``.
        spread: its standard deviation there, ``(P,)``.

    Example:
        >>> both = Combination(torch.zeros(2), torch.ones(2))
        >>> both(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        tensor([0.0000, 8.3070])
    """

    mean: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, scores: Tensor) -> Combination:
        """From scores of normal data, ``(n, P)``."""
        if scores.ndim != 2 or not len(scores):
            raise BadInput(f"scores must have shape (n, P) with n >= 1, got {tuple(scores.shape)}")
        mean = scores.mean(0)
        spread = (scores - mean).square().mean(0).sqrt()
        return cls(mean, torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def __call__(self, scores: Tensor) -> Tensor:
        """The combined score of scores ``(B, P)``, ``(B,)``."""
        standard = (scores - self.mean) / self.spread
        return torch.logsumexp(standard, 1) - math.log(scores.shape[1])
