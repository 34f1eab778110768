"""Pictures that somebody sent: limits on number and size, then damc's own careful decoding."""

from __future__ import annotations

__all__ = [
    "MOST_BYTES",
    "MOST_FILES",
    "MOST_SIDE",
    "Picture",
    "read_picture",
    "read_pictures",
    "stacked",
]

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.data.pictures import PICTURE_SUFFIXES, decode, fit, size_of
from damc.errors import BadInput

MOST_BYTES = 10 * 2**20
"""Of one file."""
MOST_FILES = 1000
"""Files at once."""
MOST_SIDE = 4096
"""Pixels of a picture's longer side."""


class Picture(NamedTuple):
    """A decoded picture: the name of its file, and uint8 ``(C, H, W)``."""

    name: str
    pixels: NDArray[Any]


def read_picture(path: str | Path) -> Picture:
    """One picture of at most `MOST_SIDE` pixels a side and `MOST_BYTES` bytes.

    Raises:
        BadInput: in a sentence that names the file as its sender knows it.
    """
    path = Path(path)
    name = _name(path)
    if path.suffix.lower() not in PICTURE_SUFFIXES:
        kinds = ", ".join(PICTURE_SUFFIXES)
        raise BadInput(f"{name} must be a picture ({kinds}), got {path.suffix or 'no suffix'!r}")
    size = os.stat(path).st_size  # noqa: PTH116 - of a path that may be a broken link
    if size > MOST_BYTES:
        raise BadInput(
            f"{name} must have at most {MOST_BYTES / 2**20:g} MB, got {size / 2**20:.1f}"
        )
    try:
        width, height = size_of(path)  # from the header: nothing is decoded yet
        if max(width, height) > MOST_SIDE:
            raise BadInput(
                f"{name} must have at most {MOST_SIDE:,} pixels a side, got {width:,}x{height:,}"
            )
        return Picture(name, decode(path))
    except BadInput as error:
        raise BadInput(str(error).replace(str(path), name)) from error


def read_pictures(
    paths: Sequence[str | Path],
    side: int | None = None,
    channels: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Picture]:
    """Pictures brought to one square size and one number of channels.

    Args:
        paths: the files; those that do not look like pictures are an error.
        side: pixels a side; the least of the largest center squares, at most 64, if not given.
        channels: 1 or 3; 3 if not given, or 1 if all are grayscale.
        progress: called with the share done and what is being done.
    """
    if not paths:
        raise BadInput("pictures must be given, got none")
    if len(paths) > MOST_FILES:
        raise BadInput(f"there must be at most {MOST_FILES:,} files at once, got {len(paths):,}")
    if side is None:
        side = min(64, *(min(_size(path)) for path in paths))
    found = []
    for k, path in enumerate(paths):
        if progress is not None:
            progress(k / len(paths), f"reading picture {k + 1:,} of {len(paths):,}")
        name, pixels = read_picture(path)
        found.append(Picture(name, fit(pixels, name, size=side)))
    gray = all(len(picture.pixels) == 1 for picture in found)
    channels = channels or (1 if gray else 3)
    return [Picture(name, fit(pixels, name, channels=channels)) for name, pixels in found]


def _size(path: str | Path) -> tuple[int, int]:
    path = Path(path)
    try:
        width, height = size_of(path)
    except BadInput as error:
        raise BadInput(str(error).replace(str(path), _name(path))) from error
    if min(width, height) < 1:
        raise BadInput(f"{_name(path)} must have pixels, got {width}x{height}")
    return width, height


def _name(path: Path) -> str:
    """The file's own name, short and without what could be taken for markup."""
    plain = "".join(c if c.isalnum() or c in "-_. " else "_" for c in path.name)
    return plain if len(plain) <= 60 else plain[:28] + "..." + plain[-28:]


def stacked(pictures: Sequence[Picture]) -> NDArray[np.uint8]:
    """All of them in one array, ``(N, C, H, W)``."""
    return np.stack([picture.pixels for picture in pictures])
