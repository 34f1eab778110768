"""Endless batches for training: `batches` from a set of images, `Stream` from any iterable.

Both yield `(x, index)`: images `(B, C, H, W)` in [-1, 1], and the number of each `(B,)`, int64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from damc.errors import BadInput
from damc.randomness import derive_seed

if TYPE_CHECKING:
    from damc.data.images import Images

__all__ = ["Stream", "batches"]


def batches(
    images: Images,
    batch_size: int,
    *,
    seed: int,
    start: int = 0,
    rank: int = 0,
    world: int = 1,
    flip: bool = False,
    shift: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless shuffled batches; batch k depends on `(seed, k)` and on nothing before it.

    Every epoch is a new permutation of the images, and its last, incomplete batch is dropped. If
    there are fewer images than `batch_size`, a batch is all of them.

    Args:
        images: N images.
        batch_size: images in a batch, over all ranks together.
        seed: of the order, the flips and the shifts.
        start: the number of the first batch, to resume where a run stopped.
        rank: this process takes images rank, rank + world, ... of every batch.
        world: number of processes; must divide `batch_size`.
        flip: mirror each image left to right with probability one half. The choice is drawn for
            the whole batch, so it does not depend on `world`.
        shift: move each image by up to so many pixels, up or down and left or right, and repeat
            its edge where it was; drawn like the flips.
    """
    if batch_size < 1:
        raise BadInput(f"batch_size must be at least 1, got {batch_size}")
    if start < 0:
        raise BadInput(f"start must be the number of a batch, 0 or more, got {start}")
    if shift < 0:
        raise BadInput(f"shift must be a number of pixels, 0 or more, got {shift}")
    _check_rank(rank, world)
    if batch_size % world:
        raise BadInput(f"batch_size must be a multiple of the {world} processes, got {batch_size}")
    size = min(batch_size, len(images)) // world * world
    if not size:
        raise BadInput(f"{images.name} has {len(images)} images, fewer than the {world} processes")
    return _batches(images, size, seed, start, rank, world, flip, shift)


class Stream:
    """Batches from any iterable: a DataLoader, a list of tensors, a generator function.

    Items are `x` or `(x, y)`, y unused; x is `(B, C, H, W)` or `(B, H, W)`, uint8 or float in
    [-1, 1]. An iterable that can be walked again is walked for ever. A one-shot iterator cannot,
    and training that needs more batches than it has ends with `BadInput`.

    Args:
        source: the iterable, or a function without arguments that makes one for each epoch.
        name: for error messages.
    """

    def __init__(
        self, source: Iterable[Any] | Callable[[], Iterable[Any]], *, name: str = "the stream"
    ) -> None:
        if not callable(source) and not isinstance(source, Iterable):
            raise BadInput(
                f"{name} must be an iterable of batches or a function that makes one, "
                f"got a {type(source).__name__}"
            )
        self.name = name
        self._source = source

    def iterate(
        self, start: int = 0, *, rank: int = 0, world: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield `(x, index)` from batch `start` on; the batches before it are drawn and dropped.

        `index` counts the images that went by, so no number returns. With `world` processes, each
        reads the whole stream and keeps images rank, rank + world, ... of every batch, of which the
        last ones are left out where `world` does not divide their number.
        """
        _check_rank(rank, world)
        shape: torch.Size | None = None
        seen = 0
        for k, item in enumerate(self._items()):
            x = self._image_batch(item)
            if shape is not None and x.shape[1:] != shape:
                raise BadInput(
                    f"batch {k} of {self.name} has images of shape {tuple(x.shape[1:])}, "
                    f"the first had {tuple(shape)}"
                )
            if len(x) < world:
                raise BadInput(f"batch {k} of {self.name} has {len(x)} images for {world} ranks")
            shape = x.shape[1:]
            index = torch.arange(seen, seen + len(x))
            seen += len(x)
            x, index = (part[: len(x) // world * world] for part in (x, index))
            if k >= start:
                yield _to_unit(x[rank::world]), index[rank::world]

    def _items(self) -> Iterator[Any]:
        drawn = 0
        for epoch in itertools.count():
            walk = self._source() if callable(self._source) else self._source
            before = drawn
            for item in walk:
                drawn += 1
                yield item
            if isinstance(self._source, Iterator):
                raise BadInput(
                    f"{self.name} ended after {drawn} batches and cannot be iterated again: give a "
                    "list, a DataLoader, or a function that makes a new iterator"
                )
            if drawn == before:
                raise BadInput(f"{self.name} gave no batches in epoch {epoch}")

    def _image_batch(self, item: Any) -> Tensor:
        x = item[0] if isinstance(item, (tuple, list)) and item else item
        if not isinstance(x, Tensor):
            raise BadInput(
                f"batches of {self.name} must be tensors of images, got a {type(x).__name__}"
            )
        if x.ndim == 3:
            x = x[:, None]
        if x.ndim != 4 or not x.numel():
            raise BadInput(
                f"batches of {self.name} must be (B, C, H, W) or (B, H, W), "
                f"got shape {tuple(x.shape)}"
            )
        if x.dtype == torch.uint8:
            return x
        if not x.is_floating_point():
            raise BadInput(
                f"batches of {self.name} must be uint8 or float in [-1, 1], got {x.dtype}"
            )
        low, high = (float(end) for end in x.detach().aminmax())
        if not (low >= -1 and high <= 1):
            raise BadInput(
                f"batches of {self.name} must be uint8, or finite floats in [-1, 1], "
                f"got values from {low:g} to {high:g}"
            )
        return x


def _batches(
    images: Images, size: int, seed: int, start: int, rank: int, world: int, flip: bool, shift: int
) -> Iterator[tuple[Tensor, Tensor]]:
    per_epoch = len(images) // size
    order, epoch = torch.empty(0, dtype=torch.int64), -1
    generator = torch.Generator()
    for k in itertools.count(start):
        if k // per_epoch != epoch:
            epoch = k // per_epoch
            generator.manual_seed(derive_seed(seed, "order", epoch))
            order = torch.randperm(len(images), generator=generator)
        at = k % per_epoch * size
        index = order[at : at + size][rank::world]
        x = images.batch(index)
        if flip:
            generator.manual_seed(derive_seed(seed, "flip", k))
            heads = torch.rand(size, generator=generator) < 0.5
            x = torch.where(heads[rank::world, None, None, None], x.flip(-1), x)
        if shift:
            generator.manual_seed(derive_seed(seed, "shift", k))
            by = torch.randint(-shift, shift + 1, (size, 2), generator=generator)
            x = shifted(x, by[rank::world])
        yield x, index


def shifted(x: Tensor, by: Tensor) -> Tensor:
    """Images x ``(B, C, H, W)`` moved by pixels `by` ``(B, 2)``, down and right, edges repeated."""
    high, wide = x.shape[-2:]
    rows = (torch.arange(high) - by[:, :1]).clamp(0, high - 1)
    columns = (torch.arange(wide) - by[:, 1:]).clamp(0, wide - 1)
    x = x.gather(2, rows[:, None, :, None].expand_as(x))
    return x.gather(3, columns[:, None, None, :].expand_as(x))


def _to_unit(x: Tensor) -> Tensor:
    return x.float() / 127.5 - 1 if x.dtype == torch.uint8 else x.detach().float()


def _check_rank(rank: int, world: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise BadInput(
            f"rank must be at least 0 and below {world}, the number of processes, got {rank}"
        )
