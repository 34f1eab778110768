"""What a decoded picture holds: turned, transparent, with palettes, in CMYK, with 10 to 16 bits."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from damc.data import Reading, load_images
from damc.data.pictures import decode, size_of
from damc.errors import BadInput
from tests.reference.pictures import write_png16

RNG = np.random.default_rng(4)


def colors(height: int, width: int, channels: int = 3, top: int = 255) -> np.ndarray:
    kind = np.uint8 if top == 255 else np.uint16
    pixels = RNG.integers(0, top + 1, (height, width, channels)).astype(kind)
    pixels[0, 0], pixels[-1, -1] = 0, top
    return pixels


@pytest.mark.parametrize("end", ["png", "jpg", "tif", "webp"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_are_turned_as_pillow_turns_them(tmp_path: Path, end: str, turn: int) -> None:
    tag = Image.Exif()
    tag[0x0112] = turn
    path = tmp_path / f"x.{end}"
    Image.fromarray(colors(5, 8)).save(path, exif=tag)
    with Image.open(path) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(decode(path).transpose(1, 2, 0), wanted)
    assert size_of(path) == (wanted.shape[1], wanted.shape[0])


@pytest.mark.parametrize(("background", "under"), [("white", 255), ("black", 0)])
@pytest.mark.parametrize("channels", [2, 4])
def test_alpha_is_laid_over_the_background(
    tmp_path: Path, background: str, under: int, channels: int
) -> None:
    pixels = colors(6, 7, channels)
    pixels[:2, :, -1], pixels[2:4, :, -1], pixels[4:, :, -1] = 0, 255, 128
    Image.fromarray(pixels).save(tmp_path / "x.png")
    found = decode(tmp_path / "x.png", Reading(background)).transpose(1, 2, 0)
    color = pixels[..., :-1]
    assert (found[:2] == under).all() and np.array_equal(found[2:4], color[2:4])
    half = color[4:] * (128 / 255) + under * (127 / 255)
    assert np.abs(found[4:] - half).max() <= 0.51
    again = load_images(tmp_path / "x.png", background=background)
    assert torch.equal(
        again.batch(torch.tensor([0]))[0, :, 0, 0],
        torch.full_like(again.batch(torch.tensor([0]))[0, :, 0, 0], under / 127.5 - 1),
    )


def test_transparent_palettes_and_cmyk(tmp_path: Path) -> None:
    pixels = colors(6, 7)
    indexed = Image.fromarray(pixels).quantize(8)
    indexed.save(tmp_path / "p.png", transparency=3)
    wanted = np.asarray(indexed.convert("RGB")).copy()
    wanted[np.asarray(indexed) == 3] = 255
    assert np.array_equal(decode(tmp_path / "p.png").transpose(1, 2, 0), wanted)
    cmyk = Image.fromarray(pixels).convert("CMYK")
    cmyk.save(tmp_path / "c.tif")
    assert np.array_equal(
        decode(tmp_path / "c.tif").transpose(1, 2, 0), np.asarray(cmyk.convert("RGB"))
    )


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("end", ["png", "tif"])
def test_the_bits_that_are_used_span_the_range(tmp_path: Path, bits: int, end: str) -> None:
    top = 2**bits - 1
    deep = RNG.integers(0, top + 1, (3, 9, 8)).astype(np.uint16)
    deep[0, 0, 0], deep[1, 0, 0] = 0, top  # the darkest and the brightest in different files
    for i, image in enumerate(deep):
        Image.fromarray(image).save(tmp_path / f"{i}.{end}")
    images = load_images(tmp_path)
    x = images.batch(torch.arange(3))
    assert x.min() == -1 and x.max() == 1
    assert torch.allclose(x[:, 0].double(), torch.from_numpy(deep / top * 2 - 1), atol=1e-6)
    assert f"{bits} used: 0 to {top:,} span [-1, 1]" in images.note


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_twelve_bits_in_a_color_png_are_all_read(tmp_path: Path, channels: int) -> None:
    """Pillow keeps the upper 8 of 16 bits, of which twelve-bit pictures use four."""
    pixels = colors(11, 6, channels, top=4095)
    if channels != 3:
        pixels[..., -1] = 65535  # opaque
    write_png16(tmp_path / "x.png", pixels)
    color = pixels if channels == 3 else pixels[..., :-1]
    found = decode(tmp_path / "x.png").transpose(1, 2, 0)
    assert np.allclose(found, color / 4095 * 2 - 1, atol=1e-6)


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("order", "<>")
def test_twelve_bits_in_a_color_tiff_are_all_read(
    tmp_path: Path, deflated: bool, order: str
) -> None:
    pixels = colors(11, 6, top=4095)
    (tmp_path / "x.tif").write_bytes(tiff16(pixels, deflated, order))
    found = decode(tmp_path / "x.tif").transpose(1, 2, 0)
    assert np.allclose(found, pixels / 4095 * 2 - 1, atol=1e-6)
    whole = (tmp_path / "x.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(whole[:-40])
    with pytest.raises(BadInput, match="cut.tif is not a readable picture"):
        decode(tmp_path / "cut.tif")


def test_a_later_picture_is_read_with_the_bits_of_the_first_ones(tmp_path: Path) -> None:
    dark = np.full((8, 8), 900, np.uint16)
    Image.fromarray(dark).save(tmp_path / "dark.png")
    known = Reading(bits={"PNG": 12})
    assert np.allclose(decode(tmp_path / "dark.png", known), 900 / 4095 * 2 - 1, atol=1e-6)
    Image.fromarray(dark * 5).save(tmp_path / "bright.png")
    with pytest.raises(BadInput, match="bright.png must use 12 bits, 0 to 4095, got .* 4500"):
        decode(tmp_path / "bright.png", known)


def test_floats_and_eight_bits_stand_beside_deep_pictures(tmp_path: Path) -> None:
    unit = RNG.random((8, 8)).astype(np.float32)
    Image.fromarray(unit).save(tmp_path / "a.tif")
    Image.fromarray(np.uint8(RNG.integers(0, 256, (8, 8)))).save(tmp_path / "b.png")
    x = load_images(tmp_path).batch(torch.arange(2))
    assert torch.allclose(x[0, 0], torch.from_numpy(unit) * 2 - 1, atol=1e-6)
    assert x[1].min() >= -1 and x.dtype == torch.float32
    Image.fromarray(unit + 1).save(tmp_path / "a.tif")
    with pytest.raises(BadInput, match=r"floats in \[0, 1\], got values from"):
        load_images(tmp_path)


def test_an_unknown_background_or_range_is_refused() -> None:
    with pytest.raises(BadInput, match="background must be white or black, got 'red'"):
        Reading("red")
    with pytest.raises(BadInput, match="the smaller first, got 5 and 1"):
        Reading(value_range=(5, 1))


def tiff16(pixels: np.ndarray, deflated: bool, order: str) -> bytes:
    """A TIFF of 16-bit color in one strip; deflated, its rows hold differences."""
    height, width, channels = pixels.shape
    stored = pixels
    if deflated:
        stored = np.concatenate([pixels[:, :1], pixels[:, 1:] - pixels[:, :-1]], axis=1)
    data = stored.astype(f"{order}u2").tobytes()
    data = zlib.compress(data) if deflated else data
    start = 8 + 2 + 12 * 11 + 4
    tags = {256: width, 257: height, 258: None, 259: 8 if deflated else 1, 262: 2}
    tags |= {273: start + 2 * channels, 277: channels, 278: height, 279: len(data), 284: 1}
    tags[317] = 2 if deflated else 1
    entries = b""
    for tag, value in tags.items():
        if value is None:
            entries += struct.pack(f"{order}HHII", tag, 3, channels, start)
        else:
            entries += struct.pack(f"{order}HHII", tag, 4, 1, value)
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    depths = struct.pack(f"{order}{channels}H", *[16] * channels)
    count = struct.pack(f"{order}H", len(tags))
    return head + count + entries + struct.pack(f"{order}I", 0) + depths + data
