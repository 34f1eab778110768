"""The made-up house numbers that settings for SVHN are chosen on."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.house_numbers import house_numbers
from benchmarks.printed_numbers import from_afar, printed_numbers
from damc.data import load_images


def test_they_show_digits_on_smooth_backgrounds() -> None:
    g = torch.Generator().manual_seed(0)
    strokes = torch.zeros(30, 28, 28, dtype=torch.uint8)
    strokes[:, 4:24, 12:16] = 255
    blank = load_images(torch.zeros_like(strokes))
    noise = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8, generator=g)
    photographs = load_images(noise)

    def made(digits: object) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        return house_numbers(20, digits, photographs, generator)  # type: ignore[arg-type]

    with_digits, without = made(load_images(strokes)), made(blank)
    assert with_digits.shape == (20, 3, 32, 32) and with_digits.dtype == torch.uint8
    assert with_digits.equal(made(load_images(strokes)))
    ink = (with_digits.float() - without.float()).abs().mean((0, 1))
    assert ink[16, 14:18].min() > 25  # a stroke in the middle
    assert ink[0].max() < 5  # and none at the upper edge
    edges = [image.float().diff(dim=-1).abs().mean() for image in (without, noise)]
    assert edges[0] < edges[1] / 10


def test_printed_ones_come_in_groups_of_a_house() -> None:
    """Images of one house resemble each other, and show printing in the middle."""
    photographs = torch.zeros(2, 3, 32, 32)
    images = printed_numbers(60, photographs, np.random.default_rng(0))
    assert images.shape == (60, 3, 32, 32) and images.dtype == np.uint8
    assert (images == printed_numbers(60, photographs, np.random.default_rng(0))).all()
    assert (images != printed_numbers(60, photographs, np.random.default_rng(1))).any()
    colors = np.median(images.astype(float), axis=(2, 3))
    near = abs(np.diff(colors, axis=0)).mean(1)
    assert np.median(near) < 15  # most neighbors are of one house
    assert abs(colors[::7][1:] - colors[::7][:-1]).mean() > 30  # others have other colors
    edges = abs(np.diff(images.astype(float), axis=3)).mean((0, 1))
    assert edges[10:22, 10:21].mean() > 2 * edges[0].mean()


def test_from_afar_they_are_softer_and_hold_the_same() -> None:
    images = printed_numbers(40, torch.zeros(2, 3, 32, 32), np.random.default_rng(0))
    made = from_afar(images, torch.Generator().manual_seed(0))
    assert made.shape == images.shape and made.dtype == np.uint8
    assert (made == from_afar(images, torch.Generator().manual_seed(0))).all()
    near, far = (x.astype(float) for x in (images, made))
    assert abs(near - far).mean() < 10
    assert abs(np.diff(far)).mean() < 0.8 * abs(np.diff(near)).mean()
