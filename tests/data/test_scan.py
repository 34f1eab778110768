"""Pictures looked through before training: one summary, one size, corrupt ones named."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from damc.data import Reading, load_images, pictures
from damc.data.paths import Paths
from damc.data.pictures import survey
from damc.data.scan import common_size
from damc.errors import BadInput
from tests.reference.pictures import mixed_folder


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_folder(tmp_path_factory.mktemp("pictures") / "mixed")


def test_a_corrupt_picture_is_refused_unless_it_is_skipped(mixed: Path) -> None:
    with pytest.raises(BadInput, match=r"must be of one size"):
        load_images(mixed)
    images = load_images(mixed, size="auto", skip_corrupt=True)
    assert images.scan is not None and len(images) == 39
    assert [Path(name).name for name in images.scan.skipped] == ["39-broken.png"]
    with pytest.raises(BadInput, match=r"39-broken.png \(not a readable .*--skip-corrupt"):
        load_images(mixed, size="auto", reading=Reading(check=True))


def test_the_summary_counts_everything(mixed: Path) -> None:
    images = load_images(mixed, size="auto", skip_corrupt=True)
    assert images.scan is not None
    table = images.scan.table
    assert table["read"] == "39 of 40 pictures" and "39-broken.png" in table["skipped"]
    for words in ("6 alpha laid over white", "5 turned upright by EXIF", "5 CMYK to RGB"):
        assert (
            words.replace("5 turned", "6 turned") in table["converted"]
            or words in (table["converted"])
        )
    assert "palette to RGB" in table["converted"]
    assert "39 sizes" in table["sizes"] and "resized to 44x44" in table["sizes"]
    assert table["channels"] == "33 color, 6 gray; gray ones repeated"
    assert "33 of 8 bits" in table["bits"] and "12 used: 0 to 4,095 span" in table["bits"]


def test_twelve_bit_pictures_of_a_mixed_folder_span_the_range(mixed: Path) -> None:
    images = load_images(mixed, size="auto", skip_corrupt=True)
    names = [path.name for path in sorted(mixed.iterdir()) if "broken" not in path.name]
    deep = [i for i, name in enumerate(names) if "12bit" in name]
    x = images.batch(torch.tensor(deep))
    assert len(deep) == 6 and x.shape == (6, 3, 44, 44)
    # Even after resizing, since the patches of black and white are wider than a pixel.
    assert torch.equal(x.flatten(1).min(1).values, -torch.ones(6))
    assert torch.equal(x.flatten(1).max(1).values, torch.ones(6))
    whole = load_images([mixed / names[deep[0]]])
    pixels = whole.batch(torch.tensor([0]))
    assert pixels.min() == -1 and pixels.max() == 1


def test_headers_alone_are_read_where_nothing_else_is_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 256, (9, 8), np.uint8)).save(tmp_path / f"{i}.png")
    broken = tmp_path / "1.png"
    broken.write_bytes(broken.read_bytes()[:80])  # its header is whole
    images = load_images(tmp_path)
    with pytest.raises(BadInput, match=r"1.png is not a readable picture"):
        images.batch(torch.arange(3))


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ({(64, 48): 7}, (48, 64)),
        ({(9, 300): 1}, (300, 9)),
        ({(1024, 768): 3}, (384, 512)),
        ({(80, 60): 5, (160, 120): 5, (40, 30): 1}, (60, 80)),
        ({(40, 300): 2, (300, 40): 2, (100, 100): 1}, (40, 40)),
        ({(4000, 3000): 10, (4032, 3024): 10}, (96, 128)),
    ],
)
def test_pictures_are_brought_to_a_size_that_few_have_to_grow_to(
    sizes: dict[tuple[int, int], int], wanted: tuple[int, int]
) -> None:
    assert common_size(sizes) == wanted


def test_too_small_a_size_is_refused() -> None:
    with pytest.raises(BadInput, match="8 pixels or more, got 6x20"):
        common_size({(6, 20): 3})


def test_any_aspect_is_cut_from_the_center(tmp_path: Path) -> None:
    """A band of white in the middle of a tall picture stays in the middle of a wide one."""
    pixels = np.zeros((90, 40), np.uint8)
    pixels[40:50] = 255
    Image.fromarray(pixels).save(tmp_path / "x.png")
    x = load_images(tmp_path, size=(10, 20)).batch(torch.tensor([0]))
    assert x.shape == (1, 1, 10, 20)
    rows = x[0, 0].mean(1)
    assert rows[4:6].min() > 0.8 and rows[:2].max() < -0.8 and rows[-2:].max() < -0.8


def test_published_folders_are_not_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have hundreds of thousands of pictures; their first stands for all."""
    (tmp_path / "ffhq").mkdir()
    for i in range(5):
        Image.fromarray(np.full((256, 256, 3), 50 * i, np.uint8)).save(tmp_path / f"ffhq/{i}.png")
    seen = []
    monkeypatch.setattr(pictures, "survey", lambda path, *a, **k: seen.append(path) or survey(path))
    images = load_images("ffhq", root=tmp_path)
    assert len(images) == 5 and [path.name for path in seen] == ["0.png"]
    assert images.scan is not None and images.scan.table["sizes"] == "all 256x256"
    assert torch.allclose(images.batch(torch.tensor([4])).mean(), torch.tensor(200 / 127.5 - 1))


def test_paths_take_the_memory_of_their_names(tmp_path: Path) -> None:
    """As a list of paths in every other way."""
    names = [f"a/{i:05d}.png" for i in range(5000)] + [os.fsdecode(b"caf\xe9.png")]
    plain = [tmp_path / name for name in names]
    tracemalloc.start()
    found = Paths(tmp_path, names)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 25 * len(names)
    assert list(found) == plain and len(found) == len(plain) and found[-1] == plain[-1]
    assert list(found[10:20:3]) == plain[10:20:3] and not Paths(tmp_path, [])
    with pytest.raises(IndexError):
        found[len(plain)]
