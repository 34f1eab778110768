"""Data of any range, brought to what the networks learn: columns standardized, pixels in [-1, 1].

The range is measured on the training data and kept, so that what is scored later is read alike.
"""

from __future__ import annotations

__all__ = ["Columns", "Pixels", "Scaling", "kind_of", "layout", "scaling_from", "settings_of"]

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from damc.errors import BadInput


@dataclass(frozen=True)
class Columns:
    """Plain vectors, each column to mean 0 and standard deviation 1; as images ``(n, 1, 1, d)``.

    Attributes:
        mean: of each column.
        scale: its standard deviation; 1 for a constant column, which says nothing until a row
            departs from it.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def measure(cls, rows: NDArray[Any]) -> Columns:
        """The scaling that rows ``(n, d)`` suggest."""
        # In units of a power of two, which rounds nothing: the square of 1e200 is no number.
        unit = np.ldexp(1.0, np.frexp(np.abs(rows).max(0))[1] - 1)
        mean, spread = (rows / unit).mean(0) * unit, (rows / unit).std(0) * unit
        # The deviation of a constant column is rounding noise, in units of its own size.
        scale = np.where(spread <= 1e-12 * np.abs(mean), 1.0, spread)
        return cls(tuple(map(float, mean)), tuple(map(float, scale)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(1, 1, d)."""
        return 1, 1, len(self.mean)

    def __call__(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Rows ``(n, d)`` as the networks see them, float32 ``(n, 1, 1, d)``."""
        scaled = (rows - np.array(self.mean)) / np.array(self.scale)
        # A row that is further off than this is an anomaly however far; squares stay finite.
        near: NDArray[np.float32] = scaled.clip(-1e6, 1e6).astype(np.float32)
        return near[:, None, None, :]


@dataclass(frozen=True)
class Pixels:
    """Images of one shape, from [low, high] to [-1, 1].

    Attributes:
        shape: (C, H, W).
        low: the pixel value that becomes -1; None if no array was measured, and each tells its
            own range as in `damc.data.load_images`.
        high: the one that becomes 1.
        known: the range is one of those that images come in, 0 to 255, 0 to 1 or -1 to 1, and
            nothing may lie outside; else it is that of the training images.
    """

    shape: tuple[int, int, int]
    low: float | None
    high: float | None
    known: bool = True

    @classmethod
    def measure(cls, images: NDArray[Any]) -> Pixels:
        """The scaling that images ``(n, C, H, W)`` suggest: uint8 counts 0 to 255."""
        _, c, h, w = images.shape
        low, high = float(images.min()), float(images.max())
        if images.dtype == np.uint8:
            return cls((c, h, w), 0.0, 255.0, True)
        if low >= -1 and high <= 1:
            return cls((c, h, w), 0.0 if low >= 0 else -1.0, 1.0, True)
        return cls((c, h, w), low, high if high > low else low + 1, False)

    def settled(self, images: NDArray[Any]) -> Pixels:
        """Itself, or what this array as a whole suggests if no range is known yet."""
        if self.low is not None:
            return self
        own = Pixels.measure(images)
        if not own.known:
            raise BadInput(
                "images must be bytes, or floats from -1 to 1 or from 0 to 1, "
                f"got {own.low:g} to {own.high:g}"
            )
        return own

    def __call__(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Images ``(n, C, H, W)`` in the range that was measured, as float32 in [-1, 1]."""
        if images.shape[1:] != self.shape:
            raise BadInput(
                f"the images are {_times(images.shape[1:])}, "
                f"but the detector was fitted to {_times(self.shape)} (channels x height x width)"
            )
        low, high = self.low, self.high
        if low is None or high is None:
            raise BadInput("no range of pixels is known yet: see Pixels.settled")
        if images.dtype == np.uint8 and self.known:
            low, high = 0.0, 255.0  # bytes are bytes, whatever the training images were
        least, most = float(images.min()), float(images.max())
        slack = 1e-6 * (high - low)
        if self.known and (least < low - slack or most > high + slack):
            raise BadInput(
                f"the images go from {least:g} to {most:g}, "
                f"but the detector was fitted to a range of {low:g} to {high:g}"
            )
        if images.dtype == np.uint8 and high > 255:
            raise BadInput(
                f"the images are bytes, but the detector was fitted to pixels up to {high:g}"
            )
        if high == 255 and images.dtype.kind == "f" and 0 < most <= 1:
            raise BadInput(
                f"the images are floats from {least:g} to {most:g}, "
                "but the detector was fitted to pixels from 0 to 255"
            )
        return ((images.astype(np.float32) - low) * (2 / (high - low)) - 1).astype(np.float32)


Scaling = Columns | Pixels


def scaling_from(settings: dict[str, Any]) -> Scaling:
    """The scaling whose fields these are, from a file."""
    if "shape" not in settings:
        return Columns(tuple(settings["mean"]), tuple(settings["scale"]))
    c, h, w = settings["shape"]
    return Pixels((c, h, w), settings["low"], settings["high"], settings["known"])


def settings_of(scaling: Scaling) -> dict[str, Any]:
    """Plain values from which `scaling_from` makes the scaling again."""
    return asdict(scaling)


def layout(images: NDArray[Any]) -> NDArray[Any]:
    """Images ``(n, C, H, W)`` from those, ``(n, H, W)`` or ``(n, H, W, 1, 3 or 4)``."""
    if images.dtype.kind not in "buif" or 0 in images.shape:
        raise BadInput(
            f"X must hold the pixels of images, got shape {images.shape} of {images.dtype}"
        )
    if images.dtype.kind == "b":
        images = images.astype(np.uint8) * np.uint8(255)
    if images.ndim == 3:
        return images[:, None]
    _, first, between, final = images.shape
    last = (first not in (1, 3) and final in (1, 3)) or final == 4 < min(first, between)
    return images.transpose(0, 3, 1, 2) if last else images


def kind_of(shape: tuple[int, ...]) -> str:
    """What data of that shape are called: vectors ``(d,)`` or images ``(C, H, W)``."""
    if len(shape) == 1:
        return f"vectors of {shape[0]}"
    return f"images of {_times(shape)} (channels x height x width)"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
