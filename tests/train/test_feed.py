"""The order in which batches come, from images and from streams."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from damc.data import load_images
from damc.errors import BadInput
from damc.learn import find_method
from damc.train.feed import Stream, batches
from damc.train.loop import fit

RNG = np.random.default_rng(1)


def pixels(n: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


# Batches


def take(iterator: Iterator[Any], n: int) -> list[Any]:
    return list(itertools.islice(iterator, n))


@given(
    count=st.integers(1, 40),
    size=st.integers(1, 12),
    start=st.integers(0, 30),
    seed=st.integers(0, 5),
)
def test_a_batch_depends_on_its_number_only(count: int, size: int, start: int, seed: int) -> None:
    images = load_images(np.arange(count, dtype=np.uint8)[:, None, None], value_range=(0, 255))
    # Of one pixel, which no shift changes.
    straight = take(batches(images, size, seed=seed, flip=True, shift=2), start + 5)
    resumed = take(batches(images, size, seed=seed, start=start, flip=True, shift=2), 5)
    for (x, index), (x2, index2) in zip(straight[start:], resumed, strict=True):
        assert torch.equal(index, index2) and torch.equal(x, x2)
        assert len(index) == min(size, count) and torch.equal(x, images.batch(index))


def test_an_epoch_visits_each_image_at_most_once_and_epochs_differ() -> None:
    images = load_images(pixels(23, 2, 2))
    drawn = [index for _, index in take(batches(images, 5, seed=0), 8)]
    epochs = [torch.cat(drawn[:4]), torch.cat(drawn[4:])]
    assert all(len(set(epoch.tolist())) == 20 for epoch in epochs)
    assert not torch.equal(*epochs)
    # Neighboring seeds and epochs share no order, as seed + epoch would.
    other = torch.cat([index for _, index in take(batches(images, 5, seed=1), 4)])
    assert not any(torch.equal(other, epoch) for epoch in epochs)


@pytest.mark.parametrize("count", [30, 9])
def test_ranks_share_each_batch_whatever_their_number(count: int) -> None:
    images = load_images(pixels(count, 3, 3))
    size = min(12, count) // 3 * 3
    options = {"seed": 3, "flip": True, "shift": 1}
    one = take(batches(images, size, **options), 6)
    parts = [take(batches(images, 12, **options, rank=rank, world=3), 6) for rank in range(3)]
    for k, (x, index) in enumerate(one):
        for rank in range(3):
            assert torch.equal(parts[rank][k][1], index[rank::3])
            assert torch.equal(parts[rank][k][0], x[rank::3])


def test_half_of_the_images_are_mirrored() -> None:
    n = 2000
    images = load_images(np.tile(np.array([[[0, 255]]], np.uint8), (n, 1, 1)))
    ((x, _),) = take(batches(images, n, seed=0, flip=True), 1)
    flipped = (x[:, 0, 0, 0] == 1).float()
    assert ((x[..., 0] * x[..., 1]) == -1).all()
    # Binomial(n, 1/2): four standard errors.
    assert abs(float(flipped.mean()) - 0.5) < 4 * 0.5 / n**0.5
    assert all((x[..., 0] == -1).all() for x, _ in take(batches(images, 50, seed=0), 3))


def test_images_move_by_up_to_shift_pixels_and_their_edges_are_repeated() -> None:
    n, shift = 3000, 2
    picture = np.arange(42, dtype=np.uint8).reshape(6, 7)
    images = load_images(np.repeat(picture[None], n, 0), value_range=(0, 255))
    ((x, _),) = take(batches(images, n, seed=0, shift=shift), 1)
    x = ((x[:, 0] + 1) * 127.5).round().to(torch.uint8).numpy()
    padded = np.pad(picture, shift, mode="edge")
    places = [(down, right) for down in range(5) for right in range(5)]
    found = [int((x == padded[a : a + 6, b : b + 7]).all((1, 2)).sum()) for a, b in places]
    assert sum(found) == n  # each is one of the 25 moves, all of which differ
    # Binomial(n, 1/25) each: five standard errors.
    assert max(abs(count - n / 25) for count in found) < 5 * (n * 24) ** 0.5 / 25
    again = [part for part, _ in take(batches(images, 50, seed=0, shift=shift), 2)]
    assert not torch.equal(*again)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_size": 4, "shift": -1}, "shift must be a number of pixels, 0 or more, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 5, "world": 2}, "multiple"),
        ({"batch_size": 16, "world": 8}, "fewer"),
        ({"batch_size": 4, "rank": 2, "world": 2}, "rank"),
        ({"batch_size": 4, "start": -1}, "start"),
    ],
)
def test_wrong_batches_are_refused_before_the_first(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        batches(load_images(pixels(6, 2, 2)), seed=0, **wrong)


# Streams


def test_a_stream_goes_round_and_resumes() -> None:
    held = [torch.full((2, 1, 2, 2), i / 10) for i in range(3)]
    for source in (held, lambda: iter(held), [(x, torch.zeros(2)) for x in held]):
        straight = take(Stream(source).iterate(), 8)
        assert [round(float(x.mean()) * 10) for x, _ in straight] == [0, 1, 2, 0, 1, 2, 0, 1]
        assert torch.cat([index for _, index in straight]).tolist() == list(range(16))
        resumed = take(Stream(source).iterate(start=5), 3)
        for (x, index), (x2, index2) in zip(straight[5:], resumed, strict=True):
            assert torch.equal(x, x2) and torch.equal(index, index2)


def test_a_stream_takes_a_data_loader_and_bytes() -> None:
    array = pixels(7, 4, 4)
    loader = DataLoader(TensorDataset(torch.from_numpy(array), torch.arange(7)), batch_size=3)
    drawn = take(Stream(loader).iterate(), 3)
    assert [x.shape for x, _ in drawn] == [(3, 1, 4, 4), (3, 1, 4, 4), (1, 1, 4, 4)]
    assert torch.equal(torch.cat([x for x, _ in drawn])[:, 0], torch.from_numpy(array) / 127.5 - 1)
    halves = [take(Stream([torch.zeros(4, 1, 2, 2)]).iterate(rank=r, world=2), 1) for r in (0, 1)]
    assert [half[0][1].tolist() for half in halves] == [[0, 2], [1, 3]]


def test_a_stream_that_ends_says_so() -> None:
    once = Stream(x for x in [torch.zeros(2, 1, 2, 2)] * 3).iterate()
    take(once, 3)
    with pytest.raises(BadInput, match="ended after 3 batches"):
        next(once)
    with pytest.raises(BadInput, match="no batches"):
        next(Stream([]).iterate())


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (torch.full((2, 1, 2, 2), torch.nan), "nan"),
        (torch.full((2, 1, 2, 2), 1.5), "1.5"),
        (torch.zeros(2, 2), "shape"),
        (torch.zeros(2, 1, 2, 2, dtype=torch.int64), "int64"),
        ("x", "str"),
    ],
)
def test_a_stream_checks_its_batches(item: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        next(Stream([item]).iterate())
    with pytest.raises(BadInput, match="iterable"):
        Stream(3)  # type: ignore[arg-type]
    shapes = Stream([torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 3, 3)]).iterate()
    next(shapes)
    with pytest.raises(BadInput, match="batch 1"):
        next(shapes)


def test_a_run_remembers_how_far_its_images_move(tmp_path: Path) -> None:
    images = load_images(np.zeros((20, 8, 8), np.uint8), value_range=(0, 255))
    learner = find_method("vae").from_preset("digits-small")
    fit(learner, images, iterations=1, run=tmp_path / "run", batch=10, shift=1, progress=False)
    assert json.loads((tmp_path / "run/config.json").read_text())["training"]["shift"] == 1
    with pytest.raises(BadInput, match=r"training.shift differs"):
        fit(learner, images, iterations=2, run=tmp_path / "run", batch=10, progress=False)
    with pytest.raises(BadInput, match="flip and shift are for images"):
        fit(learner, [torch.zeros(4, 1, 8, 8)], iterations=2, shift=1, progress=False)
