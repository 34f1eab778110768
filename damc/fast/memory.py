"""Many rows in little memory: drawn and computed a part at a time, into one tensor."""

from __future__ import annotations

__all__ = ["BUDGET", "ROWS", "draw_by_parts", "map_by_parts"]

from collections.abc import Callable

from torch import Tensor

BUDGET = 2**28
"""Bytes that intermediate values may take, beside the result."""

ROWS = 2**14
"""So many vectors are drawn at a time: with networks of a few thousand units, within `BUDGET`."""

_FEW = 256


def draw_by_parts(draw: Callable[[int], Tensor], n: int, rows: int = ROWS) -> Tensor:
    """`n` rows of ``draw(k)``, ``(k, ...)``, at most `rows` of them at a time.

    >>> import torch
    >>> draw_by_parts(lambda k: torch.ones(k, 2), 5, rows=2).shape
    torch.Size([5, 2])
    """
    first = draw(min(n, rows))
    if n <= rows:
        return first
    result = first.new_empty(n, *first.shape[1:])
    result[:rows] = first
    for start in range(rows, n, rows):
        result[start : start + rows] = draw(min(rows, n - start))
    return result


def map_by_parts(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """``function(z)`` for rows z ``(N, d)``, whose results are images ``(N, C, H, W)``.

    The first few show how large an image is. A decoder has about 64 channels of it at once, of 4
    bytes each.
    """
    first = function(z[:_FEW])
    if len(z) <= _FEW:
        return first
    rows = max(16, BUDGET // (256 * max(1, first[0, 0].numel())))
    result = first.new_empty(len(z), *first.shape[1:])
    result[:_FEW] = first
    for start in range(_FEW, len(z), rows):
        result[start : start + rows] = function(z[start : start + rows])
    return result
