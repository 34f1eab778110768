"""Randomness: seeds derived from one seed, torch's global state borrowed, noise that rows share."""

from __future__ import annotations

__all__ = ["SharedNoise", "derive_seed", "global_seed", "normal", "normal_like"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
