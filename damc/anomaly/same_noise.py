"""The same noise for every row of a batch, so that a score depends on its own row alone.

Scores are averages over random posterior samples. With the noise shared by all rows ("common
random numbers") two rows are compared under one draw, which takes away noise from their order, and
a row scores the same alone, among others, or in another order.
"""

from __future__ import annotations

__all__ = ["SameNoise"]

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class SameNoise(TorchFunctionMode):
    """Inside this context, Gaussian noise ``(..., B, d)`` or ``(B, C, H, W)`` is B times one row.

    It covers `torch.randn` and `Tensor.normal_`, which are all the noise of damc's learners. The
    draws come from a stream of its own, whose use does not depend on B; the generators that the
    learner is given still advance, unused.

    Args:
        seed: one seed gives the same noise again.

    Example:
        >>> with SameNoise(0):
        ...     one, three = torch.randn(1, 2), torch.randn(3, 2)
        >>> with SameNoise(0):
        ...     again = torch.randn(5, 2)
        >>> bool((again == one).all()), bool((three[1:] == three[0]).all())
        (True, True)
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func not in (torch.randn, Tensor.normal_) or out.ndim < 2:
            return out
        shape = list(out.shape)
        # Rows stand first, but for n samples of each row, (n, B, d).
        shape[1 if out.ndim == 3 else 0] = 1
        with torch.no_grad():
            return out.copy_(torch.empty(shape).normal_(generator=self.generator))
