"""The range of an array's values: told, asked about, or given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from damc.data import Reading, load_images
from damc.errors import BadInput
from damc.train.origin import Origin

RNG = np.random.default_rng(3)


def whole(source: object, **options: object) -> torch.Tensor:
    images = load_images(source, **options)  # type: ignore[arg-type]
    return images.batch(torch.arange(len(images)))


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint16])
def test_dark_whole_numbers_are_asked_about(kind: type) -> None:
    digits = RNG.integers(0, 17, (9, 8, 8)).astype(kind)
    digits[0, 0, 0] = 16
    with pytest.raises(BadInput, match=r"0 to 16 of 0 to 255.*--range 0 16.*--range 0 255"):
        load_images(digits)
    x = whole(digits, value_range=(0, 16))
    assert x.min() == -1 and x.max() == 1
    assert torch.allclose(x[:, 0].double(), torch.from_numpy(digits / 8.0 - 1), atol=1e-6)
    dark = whole(digits, value_range=(0, 255))
    assert torch.allclose(dark.max(), torch.tensor(16 / 127.5 - 1), atol=1e-6)


def test_dark_items_are_asked_about_but_one_dark_picture_of_many_is_not() -> None:
    dark = [RNG.integers(0, 17, (8, 8)).astype(np.uint8) for _ in range(4)]
    with pytest.raises(BadInput, match="--range"):
        load_images(dark)
    assert whole(dark, value_range=(0, 16)).max() == 1
    assert len(whole([*dark, np.full((8, 8), 255, np.uint8)])) == 5
    assert len(whole(np.zeros((3, 8, 8), np.uint8))) == 3  # black throughout: nothing to ask


def test_a_run_reads_dark_images_as_it_read_those_before(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 8, 8), 16, np.uint8))
    (images,) = Origin("", (1, 8, 8)).load((tmp_path / "x.npy",))
    assert torch.allclose(images.batch(torch.arange(2)), torch.tensor(16 / 127.5 - 1))
    ranged = Origin("", (1, 8, 8), reading=Reading(value_range=(0, 16)))
    (images,) = ranged.load((tmp_path / "x.npy",))
    assert torch.equal(images.batch(torch.arange(2)), torch.ones(2, 1, 8, 8))


def test_sixteen_bit_arrays_span_the_bits_they_use(tmp_path: Path) -> None:
    deep = RNG.integers(0, 4096, (5, 8, 8)).astype(np.uint16)
    deep[0, 0, :2] = 0, 4095
    np.save(tmp_path / "x.npy", deep)
    images = load_images(tmp_path / "x.npy")
    x = images.batch(torch.arange(5))
    assert x.min() == -1 and x.max() == 1 and "12 used: 0 to 4095" in images.note
    assert torch.allclose(x[:, 0].double(), torch.from_numpy(deep / 4095 * 2 - 1), atol=1e-6)


def test_values_outside_the_range_given_are_refused() -> None:
    x = RNG.normal(size=(4, 8, 8))
    with pytest.raises(BadInput, match="range given, -1 to 1, got values from"):
        load_images(x, value_range=(-1, 1))
    with pytest.raises(BadInput, match="--range, value_range"):
        load_images(x * 50)
    low, high = float(x.min()), float(x.max())
    wide = whole(x, value_range=(low, high))
    assert torch.allclose(wide.min(), torch.tensor(-1.0)) and wide.max() <= 1 + 1e-6


@pytest.mark.parametrize("shape", [(9, 8, 8), (9, 8, 8, 1), (9, 8, 8, 3), (9, 1, 8, 8)])
def test_images_lie_in_memory_row_by_row(shape: tuple[int, ...]) -> None:
    x = whole(RNG.integers(0, 256, shape, dtype=np.uint8))
    # A convolution follows these strides, and networks of one's own may `view` its result.
    assert x.stride() == torch.empty(x.shape).stride()
