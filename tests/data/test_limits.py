"""Small files that would become large ones are refused before they do."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from damc.data import load_images
from damc.data.pictures import decode, size_of
from damc.errors import BadInput
from damc.inversion.checkpoint import read_checkpoint


def png(path: Path, width: int, height: int) -> Path:
    """A picture of zeros, of one bit a pixel: about a thousandth of a byte for each."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )
    return path


def test_a_picture_of_too_many_pixels_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = png(tmp_path / "bomb.png", 10_000, 10_000)
    assert bomb.stat().st_size < 200_000
    tracemalloc.start()
    for read in (decode, size_of):
        with pytest.raises(BadInput, match="at most 67,108,864 pixels, .*, got 10000x10000"):
            read(bomb)
    assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    tracemalloc.stop()
    small = png(tmp_path / "small.png", 40, 30)
    assert decode(small).shape == (1, 30, 40)
    monkeypatch.setenv("DAMC_MAX_PIXELS", "1199")
    with pytest.raises(BadInput, match="at most 1,199 pixels"):
        decode(small)
    monkeypatch.setenv("DAMC_MAX_PIXELS", "1200")
    assert decode(small).shape == (1, 30, 40)
    monkeypatch.setenv("DAMC_MAX_PIXELS", "many")
    with pytest.raises(BadInput, match=r"\$DAMC_MAX_PIXELS must be a positive whole number"):
        decode(small)


def test_a_picture_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadInput, match="must be a plain file, got a named pipe"):
        decode(tmp_path / "pipe.png")


def test_an_archive_that_inflates_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as f,
    ):
        np.lib.format.write_array_header_1_0(
            f, {"descr": "|u1", "fortran_order": False, "shape": (1000, 300, 300)}
        )
        for _ in range(90):
            f.write(bytes(10**6))
    with pytest.raises(BadInput, match=r"more than 100 times as much, which \$DAMC_MAX_INFLATION"):
        load_images(path)
    monkeypatch.setenv("DAMC_MAX_INFLATION", "2000")
    assert len(load_images(path)) == 1000


def test_compressed_weights_are_refused_before_they_inflate(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.pth", tmp_path / "packed.pth"
    torch.save({"w": torch.zeros(2_000_000)}, plain)
    assert read_checkpoint(plain)["w"].shape == (2_000_000,)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name))
    assert packed.stat().st_size < 20_000
    with pytest.raises(BadInput, match="stored uncompressed, as torch.save does, got 800"):
        read_checkpoint(packed)
