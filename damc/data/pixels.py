"""What a decoded picture holds: orientation, alpha, palettes, CMYK and more than 8 bits.

Files with 16 bits often hold fewer: cameras and microscopes write 10, 12 or 14. `used_bits` tells
how many from the largest value, and `scaled` makes that range span [-1, 1].
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.data.deep import is_deep_color, read_deep_color
from damc.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "BACKGROUNDS",
    "Pixels",
    "Reading",
    "orientation",
    "pixels_of",
    "scaled",
    "used_bits",
]

BACKGROUNDS = {"white": 1.0, "black": 0.0}
"""What may lie under transparent pixels, as a share of the largest value."""

DEPTHS = (8, 10, 12, 14, 16)
ORIENTATION = 0x0112  # the EXIF tag


@dataclass(frozen=True)
class Reading:
    """How pixels are taken.

    Attributes:
        background: under transparent pixels, a name in `BACKGROUNDS`.
        value_range: the values of an array that are black and white; told from it if None.
        bits: by file format, how many bits of 16 the files use; told from their largest value if
            missing.
        skip_corrupt: leave out picture files that cannot be read, instead of refusing all.
        check: decode every picture file before the first is used.
        ask: refuse whole numbers that use only a small part of 0 to 255, to ask for their range.
        keep: keep the decoded pictures of a small set in memory; False where each is read once.
    """

    background: str = "white"
    value_range: tuple[float, float] | None = None
    bits: Mapping[str, int] = field(default_factory=dict)
    skip_corrupt: bool = False
    check: bool = False
    ask: bool = True
    keep: bool = True

    def __post_init__(self) -> None:
        if self.background not in BACKGROUNDS:
            known = " or ".join(BACKGROUNDS)
            raise BadInput(f"background must be {known}, got {self.background!r}")
        if not all(bits in DEPTHS for bits in self.bits.values()):
            raise BadInput(f"bits must be {', '.join(map(str, DEPTHS))}, got {dict(self.bits)}")
        if self.value_range is not None:
            low, high = map(float, self.value_range)
            if not -np.inf < low < high < np.inf:
                raise BadInput(
                    "value_range must be two finite numbers, the smaller first, "
                    f"got {low:g} and {high:g}"
                )
            object.__setattr__(self, "value_range", (low, high))  # JSON makes it a list


class Pixels(NamedTuple):
    """A picture as it is stored: uint8, uint16 or float32 in [0, 1], `(C, H, W)`, C = 1 or 3.

    `changes` says in words what was done to get there, `stored` how many bits a value had.
    """

    array: NDArray[Any]
    changes: tuple[str, ...]
    stored: int


def pixels_of(image: Image, what: str, background: str = "white") -> Pixels:
    """The pixels of a Pillow image, upright, without alpha, gray or red, green and blue."""
    array: NDArray[Any]
    changes: list[str] = []
    turn = tagged = orientation(image)
    if not is_deep_color(image):
        image.load()
        if image.format == "TIFF":  # which some versions of Pillow turn, and remove the tag
            turn = orientation(image)
    if getattr(image, "n_frames", 1) > 1:
        changes.append("first frame of several")
    if image.mode.startswith("I;16") or image.mode == "I":
        array, stored = _whole_numbers(image, what)[None], 16
    elif image.mode == "F":
        array, stored = _floats(image, what)[None], 32
    elif is_deep_color(image):
        array, stored = read_deep_color(image, what), 16
    else:
        array, stored = _bytes(image, changes), 8
    if len(array) in (2, 4):
        array = _over(array[:-1], array[-1], BACKGROUNDS[background])
        changes.append(f"alpha laid over {background}")
    if turn != 1:
        array = _upright(array, turn)
    if tagged != 1:
        changes.append("turned upright by EXIF")
    return Pixels(np.ascontiguousarray(array), tuple(changes), stored)


def scaled(array: NDArray[Any], bits: int | None, what: str) -> NDArray[Any]:
    """uint8 as it is; other pixels as float32 in [-1, 1], where `bits` bits span the range.

    Args:
        array: uint8, uint16, or float32 in [0, 1].
        bits: used by uint16 pixels; by default the fewest that hold the largest of them.
        what: the picture's name, for error messages.
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.float32:
        return np.asarray(array * np.float32(2) - np.float32(1))
    top = int(array.max())
    bits = used_bits(top) if bits is None else bits
    if top >= 2**bits:
        raise BadInput(f"{what} must use {bits} bits, 0 to {2**bits - 1}, got values up to {top}")
    span = array.astype(np.float64) * (2 / (2**bits - 1)) - 1
    return np.asarray(span, dtype=np.float32)


def used_bits(top: int) -> int:
    """The fewest bits, of 8, 10, 12, 14 and 16, that hold a value.

    Example:
        >>> used_bits(4095), used_bits(4096)
        (12, 14)
    """
    return next(bits for bits in DEPTHS if top < 2**bits)


def orientation(image: Image) -> int:
    """The EXIF orientation, 1 to 8; 1 is upright, and stands for tags that make no sense."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # Pillow would decode all pixels to look for a tag behind them
    try:
        turn = image.getexif().get(ORIENTATION, 1)
    except (
        OSError,
        ValueError,
        SyntaxError,
        TypeError,
        struct.error,
    ):  # damaged EXIF, whole pixels
        return 1
    return turn if turn in range(1, 9) else 1


def _bytes(image: Image, changes: list[str]) -> NDArray[np.uint8]:
    """8-bit pixels `(C, H, W)`; C is 2 or 4 with alpha."""
    mode = image.mode
    if mode in ("P", "PA"):
        changes.append("palette to RGB")
    elif mode not in ("1", "L", "LA", "La", "RGB", "RGBA", "RGBa", "RGBX"):
        changes.append(f"{mode} to RGB")
    alpha = mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info
    gray = mode in ("1", "L", "LA", "La")
    wanted = ("LA" if alpha else "L") if gray else ("RGBA" if alpha else "RGB")
    if mode in ("La", "RGBa"):  # premultiplied, which Pillow converts to one mode only
        image = image.convert(mode.upper())
    pixels = np.array(image.convert(wanted), dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _whole_numbers(image: Image, what: str) -> NDArray[np.uint16]:
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0 or pixels.max() > 65535:
        raise BadInput(
            f"{what} must have values of 0 to 65535, got {pixels.min()} to {pixels.max()}"
        )
    return pixels.astype(np.uint16)


def _floats(image: Image, what: str) -> NDArray[np.float32]:
    pixels = np.asarray(image, dtype=np.float32)
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):
        raise BadInput(f"{what} must have floats in [0, 1], got values from {low:g} to {high:g}")
    return pixels


def _over(color: NDArray[Any], alpha: NDArray[Any], share: float) -> NDArray[Any]:
    """Color `(C, H, W)` with opacity `(H, W)`, laid over gray of that share of white."""
    top = float(np.iinfo(color.dtype).max)
    opacity = alpha.astype(np.float32) / np.float32(top)
    mixed = color * opacity + np.float32(share * top) * (1 - opacity)
    return np.asarray(np.rint(mixed).clip(0, top)).astype(color.dtype)


def _upright(array: NDArray[Any], turn: int) -> NDArray[Any]:
    """A picture `(C, H, W)` as its EXIF orientation means it to be seen."""
    if turn >= 5:
        array = array.transpose(0, 2, 1)
    vertical, horizontal = turn in (3, 4, 7, 8), turn in (2, 3, 6, 7)
    return array[:, :: -1 if vertical else 1, :: -1 if horizontal else 1]
