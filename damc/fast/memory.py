"""Many rows in little memory: drawn and computed a part at a time, into one tensor.

On a terminal, what takes longer than a few seconds shows a progress bar.
"""

from __future__ import annotations

__all__ = ["BUDGET", "ROWS", "draw_by_parts", "map_by_parts"]

from collections.abc import Callable, Iterator

from torch import Tensor

BUDGET = 2**28
"""Bytes that intermediate values may take, beside the result."""

ROWS = 2**14
"""So many vectors are drawn at a time: with networks of a few thousand units, within `BUDGET`."""

_FEW = 256
_PATIENCE = 3.0  # seconds before a bar shows


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
    for start in _parts(rows, n, rows, "samples"):
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
    for start in _parts(_FEW, len(z), rows, "images"):
        result[start : start + rows] = function(z[start : start + rows])
    return result


def _parts(begin: int, end: int, size: int, what: str) -> Iterator[int]:
    """Where each part begins, with a bar that counts rows."""
    from tqdm.auto import tqdm

    with tqdm(
        total=end, initial=begin, desc=what, delay=_PATIENCE, disable=None, leave=False
    ) as bar:
        for start in range(begin, end, size):
            yield start
            bar.update(min(size, end - start))
