"""Initial weights that a seed decides, without a trace in torch's global random state."""

from __future__ import annotations

__all__ = ["seeded_weights"]

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Modules built inside draw their initial weights from `seed`.

    torch's layers initialize themselves from the global generator of the CPU and take no other,
    so it is seeded here and afterwards put back to the state that it had.

    Example:
        >>> with seeded_weights(0):
        ...     one = torch.nn.Linear(2, 3)
        >>> with seeded_weights(0):
        ...     two = torch.nn.Linear(2, 3)
        >>> torch.equal(one.weight, two.weight)
        True
    """
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        torch.set_rng_state(state)
