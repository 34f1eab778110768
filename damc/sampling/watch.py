"""The highest points at which a density was ever evaluated.

A mode far narrower than the rest, inside it, holds no particle, as no move ends there. But moves
pass over it: of the many points that leapfrog steps evaluate some lie in its basin, far above all
particles. Ascents from them find it.
"""

from __future__ import annotations

__all__ = ["Watched"]

import math

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad

_KEPT = 32  # points
_CALLS = 512  # after which those kept are sorted out


class Watched:
    """A log-density that remembers the highest point of every call, the highest of them in the end.

    Args:
        target: ``(B, d)`` to ``(B,)``.
    """

    def __init__(self, target: LogProb) -> None:
        self.target = target
        self._values: list[Tensor] = []
        self._points: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        value = self.target(z)
        self._look(z, value)
        return value

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        value, grad = value_and_grad(self.target, z)
        self._look(z, value)
        return value, grad

    def highest(self) -> Tensor:
        """The highest points, the best first, ``(k, d)``, at most one of each call."""
        self._sort()
        return torch.cat(self._points)

    def _look(self, z: Tensor, value: Tensor) -> None:
        if not len(z):
            return
        value = value.detach()
        best = torch.where(value.isfinite(), value, -math.inf).max(0, keepdim=True)
        self._values.append(best.values)
        self._points.append(z.detach()[best.indices])
        if len(self._values) >= _CALLS:
            self._sort()

    def _sort(self) -> None:
        values, points = torch.cat(self._values), torch.cat(self._points)
        top = values.topk(min(_KEPT, len(values)))
        self._values, self._points = [top.values], [points[top.indices]]
