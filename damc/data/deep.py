"""Color with 16 bits a channel, of which Pillow keeps the upper 8: read from PNG and TIFF files.

A picture with 12 bits in 16 would lose all but four of them.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from damc.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["is_deep_color", "read_deep_color"]

# Tags of TIFF 6.0 and the values that are read here.
COMPRESSION, STRIPS, SAMPLES, ROWS, LENGTHS, PLANAR, PREDICTOR = 259, 273, 277, 278, 279, 284, 317
PNG_CHANNELS = {2: 3, 4: 2, 6: 4}  # by color type
STORED, DEFLATED = (1,), (8, 32946)


def is_deep_color(image: Image) -> bool:
    """Whether a file has 16 bits in several channels."""
    tile: Any = (getattr(image, "tile", None) or [None])[0]
    arguments = tile[3] if tile else ""
    raw = arguments[0] if isinstance(arguments, tuple) else arguments
    return image.mode in ("RGB", "RGBA", "LA") and ";16" in str(raw)


def read_deep_color(image: Image, what: str) -> NDArray[np.uint16]:
    """All 16 bits of an open picture file, `(C, H, W)`; C is 2 or 4 with alpha, which comes last.

    Interlaced PNG files, and TIFF files other than strips that are plain or deflated, are refused.
    """
    file: Any = getattr(image, "fp", None)
    if image.format == "PNG" and file is not None:
        return _png(image, file, what)
    if image.format == "TIFF" and file is not None:
        return _tiff(image, file, what)
    raise BadInput(f"{what} must have 8 bits in each channel, or be PNG or TIFF, got 16 bits")


def _tiff(image: Image, file: Any, what: str) -> NDArray[np.uint16]:
    """Strips of interleaved samples."""
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    compression, planar = tags.get(COMPRESSION, 1), tags.get(PLANAR, 1)
    if compression not in STORED + DEFLATED or planar != 1 or STRIPS not in tags:
        raise BadInput(
            f"{what} has 16 bits in color, which is read from PNG, or from TIFF files that are "
            "not compressed or deflated: save it so, or with 8 bits"
        )
    width, height = tags[256], tags[257]
    samples = tags.get(SAMPLES, 3)
    rows, parts = tags.get(ROWS, height), []
    for i, (start, length) in enumerate(zip(tags[STRIPS], tags[LENGTHS], strict=True)):
        file.seek(start)
        data = file.read(length)
        wanted = 2 * samples * width * min(rows, height - i * rows)
        if compression in DEFLATED:
            data = _inflate(data, wanted, what)
        if wanted <= 0 or len(data) < wanted:
            raise BadInput(f"{what} is not a readable picture: it ends early")
        parts.append(data[:wanted])
    order = "<" if tags.prefix == b"II" else ">"
    pixels = np.frombuffer(b"".join(parts), f"{order}u2").astype(np.uint16)
    if pixels.size != height * width * samples:
        raise BadInput(f"{what} is not a readable picture: it ends early")
    pixels = pixels.reshape(height, width, samples)
    if tags.get(PREDICTOR, 1) == 2:  # differences along rows, modulo 2^16
        pixels = np.cumsum(pixels, axis=1, dtype=np.uint16)
    return pixels[..., : len(image.getbands())].transpose(2, 0, 1)


def _png(image: Image, file: Any, what: str) -> NDArray[np.uint16]:
    """PNG filters act on each byte of a pixel by itself, so every byte of the 16-bit pixels is
    made into an 8-bit PNG of its own, which Pillow decodes."""
    from PIL import Image as Pillow

    file.seek(0)
    head, data = _png_chunks(file.read(), what)
    channels = PNG_CHANNELS.get(head[9], 1)
    width, height = image.size
    if head[12]:
        raise BadInput(f"{what} must not be interlaced, as it has 16 bits in {channels} channels")
    row = 1 + 2 * channels * width
    lines = _inflate(data, row * height, what)
    filtered = np.frombuffer(lines, np.uint8).reshape(height, row)
    kinds, values = filtered[:, :1], filtered[:, 1:].reshape(height, width, 2 * channels)
    planes = []
    for lane in range(2 * channels):
        body = np.concatenate([kinds, values[..., lane]], axis=1).tobytes()
        with Pillow.open(io.BytesIO(_gray_png(width, height, body)), formats=("PNG",)) as plane:
            planes.append(np.asarray(plane).astype(np.uint16))
    return np.stack([planes[i] << 8 | planes[i + 1] for i in range(0, len(planes), 2)])


def _inflate(data: bytes, size: int, what: str) -> bytes:
    """Exactly `size` bytes, and never more, of what was deflated."""
    try:
        inflated = zlib.decompressobj().decompress(data, size)
    except zlib.error as error:
        raise BadInput(f"{what} is not a readable picture: {error}") from error
    if len(inflated) != size:
        raise BadInput(f"{what} is not a readable picture: it ends early")
    return inflated


def _png_chunks(content: bytes, what: str) -> tuple[bytes, bytes]:
    """The header chunk of a PNG file, and its compressed pixels."""
    at, head, parts = 8, b"", []
    while at + 12 <= len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            head = body
        elif kind == b"IDAT":
            parts.append(body)
        at += 12 + length
    if len(head) != 13:
        raise BadInput(f"{what} is not a readable picture: it has no PNG header")
    return head, b"".join(parts)


def _gray_png(width: int, height: int, body: bytes) -> bytes:
    """An 8-bit grayscale PNG of filtered lines."""
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),
        b"IDAT": zlib.compress(body, 1),
        b"IEND": b"",
    }
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
