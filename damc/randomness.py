"""Randomness: seeds derived from one seed, torch's global state borrowed, noise that rows share.

What is drawn for the rows of a batch is drawn by `normal`, `normal_like` and `uniform_like`, so
that a process which has some of the rows draws what one process would draw for them.
"""

from __future__ import annotations

__all__ = [
    "BatchShare",
    "SharedNoise",
    "batch_rows",
    "derive_seed",
    "global_seed",
    "normal",
    "normal_like",
    "own_rows",
    "uniform_like",
    "whole_batch",
]

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


class BatchShare(torch.Generator):
    """The generator of one of W processes, whose rows are r, r + W, r + 2 W, ... of a batch.

    The functions of this module draw for the whole batch, from `batch`, which all processes seed
    alike, and take the process's own rows: randomness belongs to the rows of the batch, and W
    processes draw what one does. Anything else that draws from it gets other noise in each process.

    Args:
        device: where it draws.
        rank: r.
        world: W.

    Example:
        >>> g = torch.Generator().manual_seed(0); both = normal(4, 2, generator=g)
        >>> g = BatchShare("cpu", 1, 2).seed_batch(0, own=1)
        >>> bool((normal(2, 2, generator=g) == both[1::2]).all())
        True
    """

    batch: torch.Generator
    rank: int
    world: int

    def __new__(cls, device: torch.device | str = "cpu", rank: int = 0, world: int = 1) -> Any:
        new = super().__new__(cls, device)  # type: ignore[call-arg]
        new.batch, new.rank, new.world = torch.Generator(device), rank, world
        return new

    def seed_batch(self, seed: int, *, own: int) -> BatchShare:
        """Seeds what is drawn for the batch, and what this process draws by itself."""
        self.batch.manual_seed(seed)
        self.manual_seed(own)
        return self


def whole_batch(generator: torch.Generator | None) -> torch.Generator | None:
    """The generator from which every process of a run draws the same."""
    return generator.batch if isinstance(generator, BatchShare) else generator


def batch_rows(n: int, generator: torch.Generator | None) -> int:
    """How many rows the whole batch has if this process has n."""
    return n * generator.world if isinstance(generator, BatchShare) else n


def own_rows(rows: Tensor, generator: torch.Generator | None, dim: int = 0) -> Tensor:
    """This process's rows of those of the whole batch, which dimension `dim` counts."""
    if not isinstance(generator, BatchShare):
        return rows
    place = [slice(None)] * rows.ndim
    place[dim] = slice(generator.rank, None, generator.world)
    return rows[tuple(place)].contiguous()


def normal(
    *shape: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    dim: int = -2,
) -> Tensor:
    """Standard normal noise for B rows, ``(..., B, d)``.

    Args:
        shape: of the noise.
        generator: source of all randomness; a `SharedNoise` gives every row the same, a
            `BatchShare` the noise of this process's rows.
        dtype: of the noise.
        device: of the noise.
        dim: the dimension that counts rows.
    """
    sizes = list(shape)
    if isinstance(generator, SharedNoise):
        sizes[dim] = 1
        one = torch.empty(sizes, dtype=dtype, device=device).normal_(generator=generator)
        repeats = [1] * len(shape)
        repeats[dim] = shape[dim]
        return one.repeat(*repeats)
    if isinstance(generator, BatchShare):
        sizes[dim] *= generator.world
        noise = torch.empty(sizes, dtype=dtype, device=device).normal_(generator=generator.batch)
        return own_rows(noise, generator, dim)
    return torch.empty(sizes, dtype=dtype, device=device).normal_(generator=generator)


def normal_like(z: Tensor, generator: torch.Generator | None = None, dim: int = -2) -> Tensor:
    """Standard normal noise of the shape, type and device of z, ``(..., B, d)``."""
    return normal(*z.shape, generator=generator, dtype=z.dtype, device=z.device, dim=dim)


def uniform_like(u: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Uniform noise on [0, 1) of the shape, type and device of u, ``(B, ...)``."""
    if isinstance(generator, BatchShare):
        noise = u.new_empty(len(u) * generator.world, *u.shape[1:])
        return own_rows(noise.uniform_(generator=generator.batch), generator)
    return torch.empty_like(u).uniform_(generator=generator)
