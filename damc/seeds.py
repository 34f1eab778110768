"""Seeds: one seed divided into independent ones, and torch's own random state lent for a while."""

from __future__ import annotations

__all__ = ["derive_seed", "global_seed"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed of 64 bits for one purpose, independent of those for other purposes and numbers.

    It is NumPy's `SeedSequence` of `seed` with the purpose and the numbers as its spawn key, so
    (seed 0, epoch 1) and (seed 1, epoch 0) have nothing in common.

    Args:
        seed: the user's, any integer.
        purpose: a word that tells this use of the seed from others.
        numbers: of the iteration, the process, ...; 0 or more.

    Example:
        >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 1)
        True
        >>> derive_seed(0, "order", 1) == derive_seed(1, "order", 0)
        False
    """
    key = (int.from_bytes(purpose.encode(), "big"), *numbers)
    state = np.random.SeedSequence(seed % 2**64, spawn_key=key).generate_state(1, np.uint64)
    return int(state[0])


@contextmanager
def global_seed(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seeds torch's own random state, on the CPU and on `device`, and gives the old one back.

    For what draws from it and takes no generator: the first weights of layers, and dropout.
    """
    device = torch.device(device)
    # torch.manual_seed would seed every accelerator, also those whose state is not given back.
    seeders: list[tuple[Any, Any]] = [(torch, torch.default_generator)]
    if device.type != "cpu":
        module = torch.get_device_module(device)
        seeders.append((module, module))
    states = [module.get_rng_state() for module, _ in seeders]
    try:
        for _, seeder in seeders:
            seeder.manual_seed(seed)
        yield
    finally:
        for (module, _), state in zip(seeders, states, strict=True):
            module.set_rng_state(state)
