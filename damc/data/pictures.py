"""Pictures and arrays of pictures, brought to one layout: channels first, one size, one range.

A picture is an array `(C, H, W)` of uint8 (0 to 255), or of float32 in [-1, 1]. Files are decoded
by Pillow as they are stored: alpha is dropped, 16-bit grayscale keeps its upper 8 bits, an
animation its first frame, and a camera's rotation tag is not applied.
"""

from __future__ import annotations

import math
import os
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.data.limits import check_pixels
from damc.disk import open_plain
from damc.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "PICTURE_SUFFIXES",
    "Arranged",
    "arrange",
    "check_one_size",
    "decode",
    "fit",
    "from_pil",
    "list_pictures",
    "size_of",
    "split_folder",
]

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif")
# Only these decoders: some of Pillow's others start outside programs.
DECODERS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
SPLIT_FOLDERS = ("train", "test", "val", "valid", "validation")
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


class Arranged(NamedTuple):
    """Images `(N, C, H, W)`, uint8 or float; `low` is the lower end of a float range, 0 or -1."""

    images: NDArray[Any]
    low: float
    note: str


def arrange(array: NDArray[Any], what: str) -> Arranged:
    """Bring `(N, H, W)`, `(N, H, W, C)` or `(N, C, H, W)` to `(N, C, H, W)`; tell the range.

    uint8 counts 0 to 255. Other whole numbers must lie in 0..255; booleans become 0 and 255.
    Floats must lie in [0, 1] or [-1, 1]; without a negative value they are taken as [0, 1], and
    `note` says which. An array whose second and last axes could both be channels is taken as
    channels first. NaN and infinite pixels are refused.
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
    low = 0.0
    if array.dtype.kind == "b":
        array = array.astype(np.uint8) * np.uint8(255)
        notes.append("booleans taken as 0 and 255")
    elif array.dtype != np.uint8:
        smallest, largest = _ends(array, what)
        if array.dtype.kind != "f" and smallest >= 0 and largest <= 255:
            array = array.astype(np.uint8)
            notes.append("whole numbers taken as 0 to 255")
        elif array.dtype.kind == "f" and smallest >= -1 and largest <= 1:
            low = 0.0 if smallest >= 0 else -1.0
            notes.append(f"floats taken as [{low:.0f}, 1]")
        else:
            raise BadInput(
                f"{what} must be uint8 in 0..255, or floats in [0, 1] or [-1, 1], "
                f"got values from {smallest:g} to {largest:g}"
            )
    return Arranged(array, low, "; ".join(notes))


def decode(path: Path) -> NDArray[np.uint8]:
    """Decode a picture file to uint8 `(C, H, W)`: one channel if stored grayscale, else three."""
    from PIL import Image

    try:
        with _opened(path) as image:
            return from_pil(image, str(path))
    except BadInput:
        raise
    except (
        *(OSError, ValueError, SyntaxError, EOFError, struct.error),
        *(MemoryError, Image.DecompressionBombError),
    ) as error:
        raise BadInput(f"{path} is not a readable picture: {_said(error)}") from error


def from_pil(image: Image, what: str) -> NDArray[np.uint8]:
    """A Pillow image as uint8 `(C, H, W)`: one channel if it is grayscale, else three."""
    if image.mode.startswith("I;16"):
        return (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)[None]
    if image.mode in ("I", "F"):
        raise BadInput(f"{what} must have 8 or 16 bits per channel, got mode {image.mode}")
    gray = image.mode in ("1", "L", "LA", "La")
    pixels = np.array(image.convert("L" if gray else "RGB"), dtype=np.uint8)
    return pixels[None] if gray else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a picture file, from its header alone."""
    from PIL import Image

    try:
        with _opened(path) as image:
            return image.size
    except BadInput:
        raise
    except (
        *(OSError, ValueError, SyntaxError, EOFError, struct.error),
        Image.DecompressionBombError,
    ) as error:
        raise BadInput(f"{path} is not a readable picture: {_said(error)}") from error


def check_one_size(paths: Sequence[Path]) -> None:
    """See from the headers that all pictures have one size, before training starts."""
    first = size_of(paths[0])
    for path in paths[1:]:
        size = size_of(path)
        if size != first:
            raise BadInput(
                f"the pictures differ in size, {paths[0]} is {first[0]}x{first[1]} and {path} is "
                f"{size[0]}x{size[1]}: give a size, and all are cropped and resized to that square"
            )


def fit(
    image: NDArray[Any],
    what: str,
    *,
    crop: int | None = None,
    size: int | None = None,
    channels: int | None = None,
) -> NDArray[Any]:
    """Crop, resize and recolor one picture `(C, H, W)`, uint8 or float32 in [-1, 1].

    Args:
        image: the picture.
        what: its name, for error messages.
        crop: first cut out the center square of this many pixels. CelebA's aligned pictures
            (178x218) are commonly cut at 140, which leaves the face.
        size: cut the largest center square and resize it to this many pixels (Lanczos).
        channels: 1 turns color to luma (ITU-R 601), 3 repeats grayscale.
    """
    if channels not in (None, 1, 3):
        raise BadInput(f"channels must be 1 or 3, got {channels}")
    if channels == 1 and image.shape[0] == 3:
        luma = np.tensordot(LUMA, image.astype(np.float32), axes=1)[None]
        image = np.rint(luma).astype(np.uint8) if image.dtype == np.uint8 else luma
    elif channels == 3 and image.shape[0] == 1:
        image = np.repeat(image, 3, axis=0)
    if crop is not None:
        if crop < 1 or crop > min(image.shape[1:]):
            raise BadInput(
                f"crop is {crop}, but {what} has {image.shape[2]}x{image.shape[1]} pixels"
            )
        image = _centre(image, crop)
    if size is not None:
        if size < 1:
            raise BadInput(f"size must be a positive number of pixels, got {size}")
        image = _resize(_centre(image, min(image.shape[1:])), size)
    return image


def list_pictures(folder: Path) -> list[Path]:
    """Every picture below a folder, hidden files left out, sorted by path."""
    found = [
        Path(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(PICTURE_SUFFIXES) and not name.startswith(".")
    ]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def split_folder(folder: Path, split: str) -> tuple[Path | None, bool]:
    """The sub-folder of a split, None if it is missing, and whether the folder is divided at all.

    A divided folder has a sub-folder `train`, `test` or `val`. Where only `val` stands beside
    `train` (LSUN), it is the test split. `all` is the whole folder.
    """
    here = [name for name in SPLIT_FOLDERS if (folder / name).is_dir()]
    if not here or split == "all":
        return folder, bool(here)
    names = [split, "val", "valid", "validation"] if split == "test" else [split]
    return next((folder / name for name in names if name in here), None), True


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """A picture whose header is read, and whose pixels are not too many to decode."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
        with open_plain(path) as file, Image.open(file, formats=DECODERS) as image:
            check_pixels(image.size, path)
            yield image


def _ends(array: NDArray[Any], what: str) -> tuple[float, float]:
    # In slices: a memory-mapped array may be larger than memory.
    rows = max(1, 2**22 // math.prod(array.shape[1:]))
    parts = [array[start : start + rows] for start in range(0, len(array), rows)]
    ends = [(float(part.min()), float(part.max())) for part in parts]
    if not all(math.isfinite(low) and math.isfinite(high) for low, high in ends):
        raise BadInput(f"{what} has NaN or infinite pixels")
    return min(low for low, _ in ends), max(high for _, high in ends)


def _centre(image: NDArray[Any], side: int) -> NDArray[Any]:
    top, left = (image.shape[1] - side) // 2, (image.shape[2] - side) // 2
    return image[:, top : top + side, left : left + side]


def _resize(image: NDArray[Any], size: int) -> NDArray[Any]:
    if image.shape[1:] == (size, size):
        return image
    from PIL import Image

    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(plane)).resize(
                (size, size), Image.Resampling.LANCZOS
            )
        )
        for plane in image
    ]
    resized = np.stack(planes)
    # Lanczos overshoots at edges; Pillow clips bytes itself, floats are clipped here.
    return resized if resized.dtype == np.uint8 else resized.clip(-1.0, 1.0)


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
