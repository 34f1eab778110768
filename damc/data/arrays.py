"""Arrays of images, brought to one layout, channels first, and their range of values told."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.data.pixels import used_bits
from damc.errors import BadInput

__all__ = ["ASKED_BELOW", "Arranged", "arrange", "check_used"]

ASKED_BELOW = 64
"""A uint8 array whose largest value is below is asked about: its range may be another."""


class Arranged(NamedTuple):
    """Images `(N, C, H, W)`: uint8 in 0..255, or numbers of which `low` is black, `high` white."""

    images: NDArray[Any]
    low: float
    high: float
    note: str


def arrange(
    array: NDArray[Any],
    what: str,
    value_range: tuple[float, float] | None = None,
    *,
    ask: bool = True,
) -> Arranged:
    """Bring `(N, H, W)`, `(N, H, W, C)` or `(N, C, H, W)` to `(N, C, H, W)`; tell the range.

    uint8 counts 0 to 255, and is refused where it uses only 0 to 63: such values often have a
    range of their own. 16-bit whole numbers span the bits that they use, others must lie in 0..255;
    booleans become 0 and 255. Floats must lie in [0, 1] or [-1, 1]; without a negative value they
    are taken as [0, 1]. `note` says what was assumed. An array whose second and last axes could
    both be channels is taken as channels first. NaN and infinite pixels are refused.

    Args:
        array: the images.
        what: their name, for error messages.
        value_range: the values that are black and white, if the rules above do not hold.
        ask: refuse dark uint8; False where an image is one of many.
    """
    if array.dtype.kind not in "buif":
        raise BadInput(f"{what} must be uint8 or floats, got {array.dtype}")
    notes = []
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] in (1, 3):
        if array.shape[3] in (1, 3):
            notes.append("axis 1 taken as channels")
    elif array.ndim == 4 and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    else:
        raise BadInput(
            f"{what} must be images (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, "
            f"got shape {tuple(array.shape)}"
        )
    if 0 in array.shape:
        raise BadInput(f"{what} contains no images: its shape is {tuple(array.shape)}")
    if array.dtype.kind == "b":
        array = array.astype(np.uint8) * np.uint8(255)
        notes.append("booleans taken as 0 and 255")
        return Arranged(array, 0, 255, "; ".join(notes))
    if array.dtype == np.uint8 and value_range is None:
        if ask:
            check_used(_largest(array, ASKED_BELOW), what)
        return Arranged(array, 0, 255, "; ".join(notes))
    smallest, largest = _ends(array, what)
    low, high = (0.0, 255.0) if value_range is None else value_range
    if value_range is not None:
        if not low <= smallest <= largest <= high:
            raise BadInput(
                f"{what} must lie in the range given, {low:g} to {high:g}, "
                f"got values from {smallest:g} to {largest:g}"
            )
        notes.append(f"{low:g} to {high:g} span [-1, 1]")
    elif array.dtype.kind != "f" and smallest >= 0 and largest <= 255:
        if ask:
            check_used(int(largest), what)
        array = array.astype(np.uint8)
        notes.append("whole numbers taken as 0 to 255")
    elif array.dtype.kind in "iu" and array.dtype.itemsize == 2 and smallest >= 0:
        bits = used_bits(int(largest))
        high = float(2**bits - 1)
        notes.append(f"16 bits, {bits} used: 0 to {high:.0f} span [-1, 1]")
    elif array.dtype.kind == "f" and smallest >= -1 and largest <= 1:
        low, high = (0.0 if smallest >= 0 else -1.0), 1.0
        notes.append(f"floats taken as [{low:.0f}, 1]")
    else:
        raise BadInput(
            f"{what} must be uint8 in 0..255, or floats in [0, 1] or [-1, 1], got values from "
            f"{smallest:g} to {largest:g}: say which are black and white (--range, value_range)"
        )
    return Arranged(array, low, high, "; ".join(notes))


def check_used(largest: int, what: str) -> None:
    """Refuse whole numbers that may have another range than 0 to 255, and say how to tell."""
    if 0 < largest < ASKED_BELOW:
        raise BadInput(
            f"{what} uses only the values 0 to {largest} of 0 to 255: say whether {largest} is "
            f"white (--range 0 {largest}, in Python value_range=(0, {largest})) or 255 is (--range "
            "0 255)"
        )


def _ends(array: NDArray[Any], what: str) -> tuple[float, float]:
    # In slices: a memory-mapped array may be larger than memory.
    rows = max(1, 2**22 // math.prod(array.shape[1:]))
    parts = [array[start : start + rows] for start in range(0, len(array), rows)]
    ends = [(float(part.min()), float(part.max())) for part in parts]
    if not all(math.isfinite(low) and math.isfinite(high) for low, high in ends):
        raise BadInput(f"{what} has NaN or infinite pixels")
    return min(low for low, _ in ends), max(high for _, high in ends)


def _largest(array: NDArray[Any], enough: int) -> int:
    """The largest value, or the first found that is `enough`."""
    rows = max(1, 2**22 // math.prod(array.shape[1:]))
    largest = 0
    for start in range(0, len(array), rows):
        largest = max(largest, int(array[start : start + rows].max()))
        if largest >= enough:
            break
    return largest
