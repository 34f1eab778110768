"""Images held out by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from damc.data import Division, divide, load_images
from damc.errors import BadInput

RNG = np.random.default_rng(2)


def test_a_tenth_is_held_out_whatever_the_order_and_the_names(tmp_path: Path) -> None:
    array = RNG.integers(0, 256, (50, 8, 8), dtype=np.uint8)
    for folder, order in (("a", range(50)), ("b", RNG.permutation(50))):
        (tmp_path / folder).mkdir()
        for name, i in enumerate(order):
            Image.fromarray(array[i]).save(tmp_path / folder / f"{name:03d}.png")
    held = []
    for folder in ("a", "b"):
        images = load_images(tmp_path / folder)
        division = Division.choose(images.hashes(), 0.1)
        train, out = divide(images, division)
        assert (len(train), len(out)) == (45, 5)
        held.append(
            {
                bytes(np.rint(x.numpy() * 127.5 + 127.5).astype(np.uint8))
                for x in out.batch(torch.arange(5))
            }
        )
    assert held[0] == held[1] and len(held[0]) == 5


def test_hashes_do_not_depend_on_the_size_images_are_brought_to(tmp_path: Path) -> None:
    for i, x in enumerate(RNG.integers(0, 256, (4, 12, 9), dtype=np.uint8)):
        Image.fromarray(x).save(tmp_path / f"{i}.png")
    assert load_images(tmp_path).hashes() == load_images(tmp_path, size=8).hashes()
    array = RNG.integers(0, 256, (4, 12, 9), dtype=np.uint8)
    assert load_images(array).hashes() == load_images(array, size=(6, 6)).hashes()
    assert len(set(load_images(array).hashes())) == 4


def test_copies_of_an_image_are_on_one_side() -> None:
    hashes = [f"{i % 20:016x}" for i in range(100)]
    division = Division.choose(hashes, 0.1)
    assert not set(division.train) & set(division.held_out)
    assert len(division.train) + len(division.held_out) == 100 and len(division.held_out) == 10


def test_difference_counts_what_came_and_went() -> None:
    division = Division(("a", "b", "b"), ("c",))
    assert division.difference(["c", "b", "a", "b"]) == (0, 0)
    assert division.difference(["c", "b", "x", "y"]) == (2, 2)


def test_one_content_cannot_be_divided() -> None:
    with pytest.raises(BadInput, match="at least two different ones"):
        Division.choose(["a", "a"], 0.1)
    with pytest.raises(BadInput, match="between 0 and 1, got 1"):
        Division.choose(["a", "b"], 1.0)
    assert Division.choose(["a", "b"], 0.9) == Division(("b",), ("a",))
