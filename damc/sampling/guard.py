"""The user's log-density, asked only where it can answer.

Some log-densities raise for a whole batch because of one point: distributions of torch refuse a
scale that has rounded to 0, and a matrix may have no Cholesky factor. Ascents, kernels and rays
look far away, where such points are. These count as impossible, and the others are evaluated.
"""

from __future__ import annotations

__all__ = ["Guarded", "guarded"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PARTS = 16  # into which a batch is split that cannot be evaluated as a whole
_REFUSALS = (ValueError, ArithmeticError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


class Guarded:
    """A log-density that is NaN where the user's cannot be evaluated.

    Points that are not finite are not handed over. If the function raises, parts of the batch are
    tried, down to single points.

    Args:
        function: the user's, of points ``(B, d)``, and of observations ``(B, ...)`` if there are.
        dtype: what it takes.

    Attributes:
        points: how many were evaluated.
        refused: at how many of them the function raised.
        error: the name of the first exception.
        precision: relative, of the values that the function returns.
    """

    def __init__(self, function: Callable[..., Any], dtype: torch.dtype = torch.float64) -> None:
        self.function, self.dtype = function, dtype
        self.points = self.refused = 0
        self.error = ""
        self.precision = torch.finfo(dtype).eps
        self._box: tuple[Tensor, Tensor] | None = None

    def __call__(self, z: Tensor, *x: Tensor) -> Tensor:
        return self._answers(lambda *parts: (self.function(*parts),), z, *x)[0]

    @property
    def notes(self) -> list[str]:
        """What the user must hear of it beside the draws."""
        if not self.refused:
            return []
        return [
            f"log_prob raised {self.error} at {self.refused:,} of {self.points:,} points, which "
            "counted as impossible"
        ]

    def _answers(self, ask: Callable[..., Any], z: Tensor, *x: Tensor) -> list[Tensor]:
        """What `ask` gives of every point; NaN where it gives nothing."""
        self.points += len(z)
        parts = [part.to(self.dtype) for part in (z, *x)]
        finite = z.detach().isfinite().all(1)
        if bool(finite.all()):
            found = [part.to(z.dtype) for part in self._tried(ask, *parts)]
        else:
            where = finite.nonzero()[:, 0]
            some = self._tried(ask, *(part[where] for part in parts)) if len(where) else []
            shapes = [part.shape[1:] for part in some] or [torch.Size(), z.shape[1:]]
            found = [z.new_full((len(z), *shape), torch.nan) for shape in shapes]
            for k, part in enumerate(some):
                found[k] = found[k].index_put((where,), part.to(z.dtype))
        if z.requires_grad and not found[0].requires_grad:  # a constant, or no point is left
            found[0] = found[0] + torch.where(finite[:, None], z, 0.0).mul(0).sum(1)
        return found

    def _tried(self, ask: Callable[..., Any], *parts: Tensor) -> list[Tensor]:
        z = parts[0]
        try:
            found = list(ask(*parts))
        except _REFUSALS as error:
            self.error = self.error or type(error).__name__
        else:
            self.precision = torch.finfo(found[0].dtype).eps
            if self.error:
                self._remember(z.detach())
            return found
        if len(z) == 1:
            self.refused += 1
            return [z.sum(1) * torch.nan, z * torch.nan]
        # The points among those that were fine before are mostly fine, and the others mostly not.
        order = self._outside(z.detach()).to(torch.int).sort(stable=True)
        inside = int((order.values == 0).sum())
        if 0 < inside < len(z):
            sizes, index = [inside, len(z) - inside], order.indices
        else:
            each = -(-len(z) // _PARTS)
            sizes = [min(each, len(z) - k) for k in range(0, len(z), each)]
            index = torch.arange(len(z), device=z.device)
        split = zip(*(torch.split(part[index], sizes) for part in parts), strict=True)
        tried = [self._tried(ask, *part) for part in split]
        return [torch.cat(part)[index.argsort()] for part in zip(*tried, strict=False)]

    def _remember(self, z: Tensor) -> None:
        """Widens the box of points that could be evaluated; it is kept once one could not."""
        low, high = z.amin(0), z.amax(0)
        if self._box is not None:
            low, high = low.minimum(self._box[0]), high.maximum(self._box[1])
        self._box = (low, high)

    def _outside(self, z: Tensor) -> Tensor:
        """Which points lie outside of that box, ``(B,)``."""
        if self._box is None:
            return torch.zeros(len(z), dtype=torch.bool, device=z.device)
        return ((z < self._box[0]) | (z > self._box[1])).any(1)


class _WithGradient(Guarded):
    """The same of a function that has its own gradient."""

    def value_and_grad(self, z: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        value, grad = self._answers(self.function.value_and_grad, z, *x)  # type: ignore[attr-defined]
        return value, grad


def guarded(function: Callable[..., Any], dtype: torch.dtype = torch.float64) -> Guarded:
    """The function as a `Guarded`, with its own gradient if it has one."""
    own = getattr(function, "value_and_grad", None)
    return Guarded(function, dtype) if own is None else _WithGradient(function, dtype)
