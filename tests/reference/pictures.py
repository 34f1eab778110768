"""A folder such as people have: 40 pictures of every kind, one of them corrupt."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["mixed_folder", "picture", "write_png16"]


def picture(i: int, width: int, height: int) -> np.ndarray:
    """A smooth color picture, uint8 (H, W, 3), with something of its own in each corner."""
    rng = np.random.default_rng(i)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    waves = [np.sin(2 * np.pi * (a * x + b * y) + c) for a, b, c in rng.uniform(0, 1.5, (3, 3))]
    return np.uint8(np.clip(np.stack(waves, -1) * 110 + 128, 0, 255))


def write_png16(path: Path, pixels: np.ndarray) -> None:
    """A 16-bit PNG of uint16 (H, W) or (H, W, C), whose rows use every filter of the format."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    height, width, channels = pixels.shape
    step, rows = 2 * channels, pixels.astype(">u2").reshape(height, -1).view(np.uint8).astype(int)
    lines, above = b"", np.zeros(rows.shape[1], int)
    for y, row in enumerate(rows):
        left = np.concatenate([np.zeros(step, int), row[:-step]])
        corner = np.concatenate([np.zeros(step, int), above[:-step]])
        guess = left + above - corner
        distances = np.abs(np.stack([left, above, corner]) - guess)
        paeth = np.choose(distances.argmin(0), [left, above, corner])
        kind = y % 5
        coded = row - (np.zeros_like(row), left, above, (left + above) // 2, paeth)[kind]
        lines += bytes([kind]) + (coded % 256).astype(np.uint8).tobytes()
        above = row
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def mixed_folder(folder: Path, count: int = 40) -> Path:
    """`count` pictures, sizes 40 to 300, of eight kinds in turn; the last is corrupt."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    kinds = ("rgb.tif", "12bit.png", "rgba.png", "turned.jpg", "cmyk.jpg", "palette.png", "x.webp")
    for i in range(count - 1):
        width, height = (int(side) for side in rng.integers(40, 301, 2))
        kind = kinds[i % len(kinds)]
        path, pixels = folder / f"{i:02d}-{kind}", picture(i, width, height)
        image = Image.fromarray(pixels)
        if kind == "12bit.png":
            deep = np.rint(pixels[..., 0] / 255 * 4095).astype(np.uint16)
            # A black and a white square in the middle, which no crop removes.
            side = min(width, height) // 4
            top, left = height // 2, width // 2
            deep[top : top + side, left : left + side] = 4095
            deep[top - side : top, left - side : left] = 0
            Image.fromarray(deep).save(path)
        elif kind == "rgba.png":
            alpha = np.full((height, width, 1), 255, np.uint8)
            alpha[: height // 2] = 0
            Image.fromarray(np.concatenate([pixels, alpha], -1)).save(path)
        elif kind == "turned.jpg":
            tag = Image.Exif()
            tag[0x0112] = 6
            image.save(path, exif=tag)
        elif kind == "cmyk.jpg":
            image.convert("CMYK").save(path)
        elif kind == "palette.png":
            image.quantize(64).save(path)
        else:
            image.save(path)
    broken = folder / f"{count - 1:02d}-broken.png"
    Image.fromarray(picture(99, 80, 60)).save(broken)
    broken.write_bytes(broken.read_bytes()[:1000])
    return folder
