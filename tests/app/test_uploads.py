"""Uploads: pictures come out as one array, everything else is refused in words."""

from __future__ import annotations

import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from damc.app import uploads
from damc.app.uploads import read_picture, read_pictures, stacked
from damc.errors import BadInput


def _save(path: Path, size: tuple[int, int], mode: str = "L") -> Path:
    Image.new(mode, size, 100).save(path)
    return path


def huge_png(path: Path, side: int = 50_000) -> Path:
    """A valid header of side x side pixels and almost no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )
    return path


def test_pictures_are_brought_to_one_size_and_color(tmp_path: Path) -> None:
    paths = [_save(tmp_path / "a.png", (40, 30)), _save(tmp_path / "b.jpg", (20, 50), "RGB")]
    seen = []
    found = read_pictures(paths, progress=lambda share, what: seen.append((share, what)))
    assert stacked(found).shape == (2, 3, 20, 20)
    assert [p.name for p in found] == ["a.png", "b.jpg"]
    assert seen == [(0.0, "reading picture 1 of 2"), (0.5, "reading picture 2 of 2")]
    assert stacked(read_pictures(paths, 8, 1)).shape == (2, 1, 8, 8)


def test_a_picture_larger_than_memory_is_refused_by_its_header(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="huge.png is not a readable picture|at most 4,096 pixels"):
        read_picture(huge_png(tmp_path / "huge.png"))
    with pytest.raises(BadInput, match="at most 4,096 pixels a side, got 5,000x5,000"):
        read_picture(huge_png(tmp_path / "large.png", 5_000))


def test_a_pickle_called_png_is_refused_and_not_loaded(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "harmed",))  # type: ignore[return-value]

    path = tmp_path / "model.png"
    path.write_bytes(pickle.dumps(Harm()))
    with pytest.raises(BadInput, match="^model.png is not a readable picture"):
        read_picture(path)
    assert not (tmp_path / "harmed").exists()


def test_large_and_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _save(tmp_path / "a.png", (4, 4))
    monkeypatch.setattr(uploads, "MOST_BYTES", 10)
    with pytest.raises(BadInput, match="a.png must have at most .* MB"):
        read_picture(path)
    monkeypatch.setattr(uploads, "MOST_FILES", 3)
    with pytest.raises(BadInput, match="at most 3 files at once, got 4"):
        read_pictures([path] * 4)
    with pytest.raises(BadInput, match="must be given, got none"):
        read_pictures([])


@pytest.mark.parametrize("name", ["a.svg", "a.txt", "a", "a.npy", "a.pkl"])
def test_other_kinds_of_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<svg/>")
    with pytest.raises(BadInput, match=r"must be a picture \(\.png"):
        read_picture(tmp_path / name)


def test_messages_hold_no_path_of_the_server_and_no_markup(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>.png"
    path.write_bytes(b"nothing")
    with pytest.raises(BadInput) as caught:
        read_picture(path)
    assert str(tmp_path) not in str(caught.value) and "<" not in str(caught.value)


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (found,) = read_pictures([tmp_path / "a.png"], 9)
    assert (found.pixels == pixels.transpose(2, 0, 1)).all()
