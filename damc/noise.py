"""Gaussian noise for the rows of a batch, from an explicit generator: of their own, or shared."""

from __future__ import annotations

__all__ = ["SharedNoise", "normal", "normal_like"]

import torch
from torch import Tensor


class SharedNoise(torch.Generator):
    """A generator whose Gaussian noise is the same for every row of a batch.

    Passed as `generator=` to inference it compares all rows under one draw ("common random
    numbers"): a row then gets the same sample alone, among others, or in another order, and noise
    that all rows share does not disturb their order. Successive draws differ as ever.

    Example:
        >>> g = SharedNoise(); _ = g.manual_seed(0); three = normal(3, 2, generator=g)
        >>> _ = g.manual_seed(0); one = normal(1, 2, generator=g)
        >>> bool((three == one).all())
        True
    """


def normal(
    *shape: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard normal noise for B rows, ``(..., B, d)``.

    Args:
        shape: of the noise; its last dimension but one counts rows.
        generator: source of all randomness; a `SharedNoise` gives every row the same.
        dtype: of the noise.
        device: of the noise.
    """
    if not isinstance(generator, SharedNoise):
        return torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
    one = torch.empty((*shape[:-2], 1, shape[-1]), dtype=dtype, device=device)
    return one.normal_(generator=generator).repeat(*(1,) * len(shape[:-2]), shape[-2], 1)


def normal_like(z: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Standard normal noise of the shape, type and device of z, ``(..., B, d)``."""
    return normal(*z.shape, generator=generator, dtype=z.dtype, device=z.device)
