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
_ROUNDED = 30.0  # the distance from which on exp(-|u|) is lost beside 1
_CALLS = 512  # after which those kept are sorted out


class Watched:
    """A log-density that remembers the highest point of every call, the highest of them in the end.

    Args:
        target: ``(B, d)`` to ``(B,)``.
        mapped: whether bijections lead from its points to a support, whose border some of them are
            rounded to; a density may be +inf there.
    """

    def __init__(self, target: LogProb, *, mapped: bool = False) -> None:
        self.target, self.mapped = target, mapped
        self._seen = self._infinite = 0
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

    @property
    def infinite(self) -> float:
        """The share of points at which the log-density was +inf."""
        return self._infinite / max(1, self._seen)

    def _look(self, z: Tensor, value: Tensor) -> None:
        if not len(z):
            return
        value = value.detach()
        infinite = value == math.inf
        if self.mapped:
            infinite &= (z.detach().abs() < _ROUNDED).all(1)
        self._seen += len(z)
        self._infinite += int(infinite.sum())
        best = torch.where(value.isfinite(), value, -math.inf).max(0, keepdim=True)
        self._values.append(best.values)
        self._points.append(z.detach()[best.indices])
        if len(self._values) >= _CALLS:
            self._sort()

    def _sort(self) -> None:
        values, points = torch.cat(self._values), torch.cat(self._points)
        top = values.topk(min(_KEPT, len(values)))
        self._values, self._points = [top.values], [points[top.indices]]
