"""Supports: densities on boxes, half-lines, simplices and more, moved to all of R^k.

Kernels move freely in R^k, so a density with a bounded support is sampled in unconstrained
coordinates u, from which a smooth bijection x = T(u) leads to the support:

    log p_u(u) = log p(T(u)) + log |det dT/du|.

The bijections are those of `torch.distributions.biject_to`.
"""

from __future__ import annotations

__all__ = ["Support", "as_support"]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from damc.density import LogProb
from damc.errors import BadInput

Constraint = constraints.Constraint


@dataclass(frozen=True)
class _Block:
    """Coordinates of x that one bijection makes together."""

    transform: Any
    size: int  # of its part of x, flattened
    free: int  # of its part of u
    shape: tuple[int, ...]  # of its part of x, as the bijection makes it

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        x = self.transform(u)
        log_det = self.transform.log_abs_det_jacobian(u, x)
        return x.flatten(1), log_det.flatten(1).sum(1) if log_det.ndim > 1 else log_det

    def inverse(self, x: Tensor) -> Tensor:
        return self.transform.inv(x.reshape(len(x), *self.shape))  # type: ignore[no-any-return]


class Support:
    """The bijection of R^free onto a support in `dim` coordinates.

    Args:
        constraint: one of `torch.distributions.constraints` for all coordinates, or a list of
            them, one for each coordinate or ``(constraint, size)`` for a block of several.
        dim: size of x. A correlation Cholesky factor of k variables has k^2 coordinates, row by
            row, and a simplex all of its k.

    Example:
        >>> support = Support([constraints.positive, (constraints.simplex, 3)], dim=4)
        >>> support.free
        3
        >>> x, log_det = support(torch.zeros(1, 3))
        >>> x
        tensor([[1.0000, 0.3333, 0.3333, 0.3333]])
    """

    def __init__(self, constraint: Any, dim: int) -> None:
        parts: Sequence[Any] = constraint if isinstance(constraint, list) else [(constraint, dim)]
        sizes = [_size(part) for part in parts]
        if sum(sizes) != dim:
            raise BadInput(
                f"support must cover all {dim} coordinates, but its blocks cover {sum(sizes)}; "
                "give one constraint for each coordinate or (constraint, size) for a block"
            )
        self.blocks = [
            _block(part[0] if isinstance(part, tuple) else part, size)
            for part, size in zip(parts, sizes, strict=True)
        ]
        self.dim = dim
        self.free = sum(block.free for block in self.blocks)

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """x = T(u), ``(B, dim)``, and log |det dT/du|, ``(B,)``."""
        parts = torch.split(u, [block.free for block in self.blocks], dim=1)
        done = [block(part) for block, part in zip(self.blocks, parts, strict=True)]
        return torch.cat([x for x, _ in done], 1), torch.stack([d for _, d in done]).sum(0)

    def inverse(self, x: Tensor) -> Tensor:
        """The coordinates u of points x in the support, ``(B, free)``."""
        parts = torch.split(x, [block.size for block in self.blocks], dim=1)
        return torch.cat([b.inverse(part) for b, part in zip(self.blocks, parts, strict=True)], 1)

    def pull_back(self, log_prob: LogProb) -> LogProb:
        """The log-density of u when `log_prob` is that of x."""
        return _PulledBack(self, log_prob)


@dataclass(frozen=True)
class _PulledBack:
    """log p_u(u), a class so that draws that hold it can be pickled."""

    support: Support
    of_x: LogProb

    def __call__(self, u: Tensor) -> Tensor:
        x, log_det = self.support(u)
        return self.of_x(x) + log_det


def as_support(support: Any, dim: int) -> Support | None:
    """A constraint, a list of them or a `Support` as a `Support`; None for all of R^dim."""
    if support is None or support is constraints.real or support is constraints.real_vector:
        return None
    if isinstance(support, Support):
        if support.dim != dim:
            raise BadInput(f"support must have {dim} coordinates, got {support.dim}")
        return support
    return Support(support, dim)


def _size(part: Any) -> int:
    """How many coordinates a part of a list is for."""
    if not isinstance(part, tuple):
        return 1
    if len(part) != 2 or not isinstance(part[1], int) or isinstance(part[1], bool) or part[1] < 1:
        raise BadInput(
            f"a block of support must be (constraint, size), size at least 1, got {part!r}"
        )
    return part[1]


def _check_ends(constraint: Constraint) -> None:
    """Refuses an interval with nothing between its ends."""
    low, high = (getattr(constraint, f"{end}_bound", None) for end in ("lower", "upper"))
    if low is None or high is None:
        return
    if not bool((torch.as_tensor(low) < torch.as_tensor(high)).all()):
        raise BadInput(f"support must have its lower end below its upper one, got {constraint}")


def _block(constraint: Any, size: int) -> _Block:
    if not isinstance(constraint, Constraint):
        raise BadInput(
            "support must be a constraint of torch.distributions.constraints, or a list of them, "
            f"got {constraint!r}"
        )
    if constraint in (constraints.real, constraints.real_vector):
        constraint = constraints.real
    try:
        transform = biject_to(constraint)
    except NotImplementedError as error:
        raise BadInput(
            "support must be continuous, and one that torch.distributions.biject_to knows, got "
            f"{constraint!r}"
        ) from error
    _check_ends(constraint)
    side = math.isqrt(size)
    matrix = transform.codomain.event_dim == 2
    if matrix and side * side != size:
        raise BadInput(
            f"support {constraint!r} must have k^2 coordinates, those of a matrix, got {size}"
        )
    shape = (side, side) if matrix else (size,)
    try:
        free = math.prod(transform.inverse_shape(torch.Size(shape)))
        transform(torch.zeros(1, free))
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"support {constraint!r} must fit {size} coordinates: {error}") from error
    if free < 1:
        raise BadInput(f"support {constraint!r} leaves nothing to sample in {size} coordinates")
    return _Block(transform, size, free, shape)
