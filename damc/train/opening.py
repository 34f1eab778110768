"""Whatever a user calls data, as endless batches."""

from __future__ import annotations

__all__ = ["describe_data", "feed", "open_data"]

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from damc.data import Images, load_images
from damc.errors import BadInput
from damc.train.devices import Place
from damc.train.feed import Stream, batches


def open_data(data: Any, shape: tuple[int, int, int] | None = None) -> Images | Stream:
    """Whatever the user calls data, as something batches can be drawn from.

    Args:
        data: see `damc.fit`.
        shape: (C, H, W) that pictures of a folder or a CSV file are brought to.
    """
    if isinstance(data, Images | Stream):
        return data
    if isinstance(data, str | Path) and shape is not None:
        path = Path(data).expanduser()
        if path.is_dir() or (path.is_file() and path.suffix.lower() == ".csv"):
            return load_images(path, size=shape[1:], channels=shape[0])
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, str | Path) or (indexed and not _is_batches(data)):
        return load_images(data)
    return Stream(data)


def describe_data(source: Images | Stream) -> dict[str, Any]:
    """What a run folder remembers of the data."""
    if isinstance(source, Stream):
        return {"name": source.name}
    return {"name": source.name, "count": len(source), "shape": list(source.shape)}


def feed(
    source: Images | Stream,
    batch: int,
    seed: int,
    start: int,
    place: Place,
    flip: bool,
    shift: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from number `start` on, this process's share of each."""
    ranks = {"rank": place.global_rank, "world": place.world_size}
    if isinstance(source, Stream):
        if flip or shift:
            raise BadInput("flip and shift are for images; an iterable of batches has its own")
        return source.iterate(start, **ranks)
    return batches(source, batch, seed=seed, start=start, flip=flip, shift=shift, **ranks)


def _is_batches(data: Any) -> bool:
    """A list of batches ``(B, C, H, W)`` rather than an array or a list of single images."""
    return isinstance(data, list | tuple) and len(data) > 0 and getattr(data[0], "ndim", 0) >= 4
