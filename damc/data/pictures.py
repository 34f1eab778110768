"""Picture files: listed, looked into, decoded, and fitted to one size.

A picture is an array `(C, H, W)` of uint8 (0 to 255), or of float32 in [-1, 1] where it has more
than 8 bits. Files are decoded by Pillow, as `damc.data.pixels` describes: upright, alpha laid over
white, and of an animation the first frame.
"""

from __future__ import annotations

import os
import struct
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from damc.data.deep import is_deep_color
from damc.data.limits import check_pixels
from damc.data.paths import Paths
from damc.data.pixels import Reading, orientation, pixels_of, scaled
from damc.disk import open_plain
from damc.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PIL.Image import Image

__all__ = [
    "PICTURE_SUFFIXES",
    "check_apart",
    "decode",
    "fit",
    "list_pictures",
    "size_of",
    "split_folder",
    "survey",
]

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")
# Only these decoders: some of Pillow's others start outside programs. JPEG's opens MPO files too.
DECODERS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF")
SPLIT_FOLDERS = ("train", "test", "val", "valid", "validation")
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def decode(path: Path, reading: Reading | None = None) -> NDArray[Any]:
    """Decode a picture file to `(C, H, W)`: one channel if stored grayscale, else three.

    It is uint8, or float32 in [-1, 1] if the file has more than 8 bits.
    """
    reading = reading or Reading()
    with _opened(path) as image:
        bits = reading.bits.get(image.format or "")
        return scaled(pixels_of(image, str(path), reading.background).array, bits, str(path))


def survey(path: Path, background: str = "white", *, decode: bool = True) -> dict[str, Any]:
    """What a picture file holds: its format, size (width, height), channels, stored bits, the
    largest value if it has 16 bits, and what is changed to use it.

    Args:
        path: the file.
        background: under transparent pixels.
        decode: False reads the header alone, unless the file has more than 8 bits; `changes` is
            then empty.
    """
    with _opened(path) as image:
        mode, kind = image.mode, image.format or ""
        fact: dict[str, Any] = {
            "format": kind,
            "size": _seen_size(image),
            "top": None,
            "changes": (),
            "stored": 8,
        }
        fact["channels"] = 1 if mode in ("1", "L", "LA", "La", "I", "F") or "I;16" in mode else 3
        if decode or "I" in mode or mode == "F" or is_deep_color(image):
            pixels = pixels_of(image, str(path), background)
            channels, high, wide = pixels.array.shape
            fact |= {"size": (wide, high), "channels": channels, "stored": pixels.stored}
            fact["changes"] = pixels.changes
            if pixels.array.dtype == np.uint16:
                fact["top"] = int(pixels.array.max())
        return fact


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a picture file as it is meant to be seen, from its header alone."""
    with _opened(path) as image:
        return _seen_size(image)


def _seen_size(image: Image) -> tuple[int, int]:
    width, height = image.size
    if image.format == "TIFF":  # whose size some versions of Pillow give as it is seen
        tags: Any = image.tag_v2  # type: ignore[attr-defined]
        width, height = tags[256], tags[257]
    return (height, width) if orientation(image) >= 5 else (width, height)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An open picture file; every way of failing on it is one sentence."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            # Of damaged metadata beside whole pixels; our own limit is lower than Pillow's.
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with open_plain(path) as file, Image.open(file, formats=DECODERS) as image:
                check_pixels(image.size, path)
                yield image
    except BadInput:
        raise
    except (
        *(OSError, ValueError, SyntaxError, EOFError, struct.error, KeyError, TypeError),
        *(MemoryError, Image.DecompressionBombError),
    ) as error:
        raise BadInput(f"{path} is not a readable picture: {_said(error)}") from error


def fit(
    image: NDArray[Any],
    what: str,
    *,
    crop: int | None = None,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
) -> NDArray[Any]:
    """Crop, resize and recolor one picture `(C, H, W)`, uint8 or float32 in [-1, 1].

    Args:
        image: the picture.
        what: its name, for error messages.
        crop: first cut out the center square of this many pixels. CelebA's aligned pictures
            (178x218) are commonly cut at 140, which leaves the face.
        size: cut the largest part of this (height, width)'s aspect from the center and resize it
            (Lanczos); one number is a square.
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
        image = _center(image, (crop, crop))
    if size is not None:
        high, wide = (size, size) if isinstance(size, int) else size
        if high < 1 or wide < 1:
            raise BadInput(f"size must be a positive number of pixels, got {size}")
        # The largest part of that aspect: one of its sides is the picture's.
        scale = min(image.shape[1] / high, image.shape[2] / wide)
        part = (max(1, round(high * scale)), max(1, round(wide * scale)))
        image = _resize(_center(image, part), (high, wide))
    return image


def list_pictures(folder: Path) -> Paths:
    """Every picture below a folder, hidden files left out, sorted by path."""
    found: list[str] = []
    for where, _, names in os.walk(folder):
        below = Path(where).relative_to(folder)
        found += [
            (below / name).as_posix()
            for name in names
            if name.lower().endswith(PICTURE_SUFFIXES) and not name.startswith(".")
        ]
    return Paths(folder, sorted(found))


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


def check_apart(name: str, folder: Path, source: str | Path) -> None:
    """Refuses to write pictures among those that are read, where they would be found as such.

    Args:
        name: of the folder to write, for the message.
        folder: to write.
        source: what is read; only a folder of pictures matters.
    """
    read = Path(source).expanduser()
    if not read.is_dir():
        return
    divided = [read / part for part in SPLIT_FOLDERS if (read / part).is_dir()]
    if any(folder.resolve().is_relative_to(part.resolve()) for part in divided or [read]):
        raise BadInput(f"{name} must lie outside of the folder of images {source}, got {folder}")


def _center(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    high, wide = size
    top, left = (image.shape[1] - high) // 2, (image.shape[2] - wide) // 2
    return image[:, top : top + high, left : left + wide]


def _resize(image: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    if image.shape[1:] == size:
        return image
    from PIL import Image

    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(plane)).resize(
                size[::-1], Image.Resampling.LANCZOS
            )
        )
        for plane in image
    ]
    resized = np.stack(planes)
    # Lanczos overshoots at edges; Pillow clips bytes itself, floats are clipped here.
    return resized if resized.dtype == np.uint8 else resized.clip(-1.0, 1.0)


def _said(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):  # whose words name a file object
        return "its content is of no known format"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
