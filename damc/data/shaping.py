"""What is done with every image of a source, and the source once it is made ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from damc.data import pictures
from damc.data.pixels import Reading, used_bits
from damc.data.scan import Scan, common_size
from damc.data.stores import ItemStore, Store

__all__ = ["Loaded", "Shaping", "depth_of", "shaped_store"]


class Loaded(NamedTuple):
    """A source made ready: its pixels, its name, its labels `(N,)`, what to say about it."""

    store: Store
    name: str
    labels: Tensor | None
    note: str
    scan: Scan


@dataclass(frozen=True)
class Shaping:
    """What is done with every picture: how it is read, and what `pictures.fit` is to do.

    A size is (height, width) or the side of a square; "auto" is `scan.common_size`.
    """

    size: int | tuple[int, int] | str | None = None
    crop: int | None = None
    channels: int | None = None
    reading: Reading = field(default_factory=Reading)

    def settled(self, scan: Scan) -> Shaping:
        """With "auto" made into a size, and the channels that hold every picture."""
        if self.size != "auto":
            return self
        return replace(self, size=common_size(scan.sizes), channels=self.channels or scan.color)

    @property
    def sides(self) -> tuple[int, int] | None:
        """The size as (height, width), if there is one."""
        assert not isinstance(self.size, str)
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def shaped_store(
    fetch: Callable[[int], NDArray[Any]],
    count: int,
    called: Callable[[int], str],
    shaping: Shaping,
    *,
    keep: bool,
    content: Callable[[int], str] | None = None,
) -> ItemStore:
    """A store of images that `fetch(i)` gives, fitted as `shaping` says."""
    # A grayscale picture among color ones is repeated; a color one among grayscale is refused,
    # since only the user knows which of the two is right.
    channels = shaping.channels or (3 if fetch(0).shape[0] == 3 else None)
    size = shaping.sides

    def shaped(i: int) -> NDArray[Any]:
        return pictures.fit(fetch(i), called(i), crop=shaping.crop, size=size, channels=channels)

    return ItemStore(shaped, count, called, keep=keep, content=content)


def depth_of(dtype: Any, low: float, high: float) -> str:
    """The depth of an array's images in words, as `Scan.bits` has it."""
    if dtype == np.uint8 and (low, high) == (0, 255):
        return "of 8 bits"
    used = f", {used_bits(int(high))} bits used" if dtype == np.uint16 and low == 0 else ""
    return f"of {dtype}{used}: {low:g} to {high:g} span [-1, 1]"
