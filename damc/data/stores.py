"""Where pixels come from: an array, or a function that makes pictures one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from damc.errors import BadInput

__all__ = ["KEPT_BYTES", "ArrayStore", "ItemStore", "Store", "content_hash"]

# A set of decoded pictures up to this size is kept in memory.
KEPT_BYTES = 256 * 2**20


class Store(Protocol):
    """Where pixels come from: `read` gives uint8, or float32 in [-1, 1], `(B, C, H, W)`."""

    shape: tuple[int, int, int]

    def __len__(self) -> int: ...

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]: ...

    def content(self, row: int) -> str:
        """A hash of one image as it was given, whatever is done to it afterwards."""
        ...


class ArrayStore:
    """An array `(N, C, H, W)` in memory or memory-mapped, whose values `low` to `high` span
    [-1, 1]; uint8 of 0 to 255 stays uint8. `high` is 255 for uint8 and 1 for others by default."""

    def __init__(self, array: NDArray[Any], low: float, high: float | None = None) -> None:
        _, channels, height, width = array.shape
        self.shape = (channels, height, width)
        self._array, self._low = array, low
        self._high = (255.0 if array.dtype == np.uint8 else 1.0) if high is None else high

    def __len__(self) -> int:
        return len(self._array)

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        # Flat in between, for strides that torch does not take for channels last: NumPy leaves
        # those of a single channel as they are.
        pixels = np.ascontiguousarray(self._array[rows]).ravel().reshape(len(rows), *self.shape)
        if pixels.dtype == np.uint8 and (self._low, self._high) == (0, 255):
            return pixels
        if (self._low, self._high) == (-1, 1):
            return pixels.astype(np.float32)
        scale = 2 / (self._high - self._low)
        if pixels.dtype.kind == "f":
            pixels = pixels.astype(np.float32)
            return pixels * np.float32(scale) - np.float32(1 + self._low * scale)
        return ((pixels - self._low) * scale - 1).astype(np.float32)

    def content(self, row: int) -> str:
        pixels = np.ascontiguousarray(self._array[row])
        return content_hash(f"{pixels.dtype.str} {pixels.shape}".encode() + pixels.tobytes())


class ItemStore:
    """Pictures made one by one by `fetch(i)`, `(C, H, W)`; kept in memory if they are few."""

    def __init__(
        self,
        fetch: Callable[[int], NDArray[Any]],
        count: int,
        called: Callable[[int], str],
        *,
        keep: bool,
        content: Callable[[int], str] | None = None,
    ) -> None:
        first = fetch(0)
        channels, height, width = first.shape
        self.shape = (channels, height, width)
        self._fetch, self._count, self._called = fetch, count, called
        self._dtype = first.dtype
        self._kept = keep and count * first.nbytes <= KEPT_BYTES
        self._pixels = np.empty((count if self._kept else 0, *self.shape), dtype=first.dtype)
        self._have = np.zeros(count, dtype=bool)
        self._content = content

    def __len__(self) -> int:
        return self._count

    def content(self, row: int) -> str:
        if self._content is not None:
            return self._content(row)
        pixels = self.read(np.array([row]))[0]
        return content_hash(f"{pixels.dtype.str} {pixels.shape}".encode() + pixels.tobytes())

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._kept:
            for i in np.unique(rows[~self._have[rows]]):
                self._pixels[i] = self._item(int(i))
                self._have[i] = True
            return self._pixels[rows]
        out = np.empty((len(rows), *self.shape), dtype=self._dtype)
        for row, i in enumerate(rows):
            out[row] = self._item(int(i))
        return out

    def _item(self, i: int) -> NDArray[Any]:
        item = self._fetch(i)
        if item.shape != self.shape or item.dtype != self._dtype:
            raise BadInput(
                f"{self._called(i)} is {item.dtype} {item.shape} but {self._called(0)} is "
                f"{self._dtype} {self.shape}: give size= and channels= to make them equal"
            )
        return item


def content_hash(content: bytes) -> str:
    """16 hex digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]
