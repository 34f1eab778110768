"""The Generate and Reconstruct tabs, on an untrained model: shapes, seeds, limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import damc
from damc.app import latent
from damc.app.models import Models, packaged
from damc.app.pictures import heat, sheet
from damc.errors import BadInput
from damc.learn.learner import Learner
from damc.randomness import global_seed


@pytest.fixture(scope="module")
def learner() -> Learner:
    with global_seed(0):
        return damc.DAMC.from_preset("digits-small")


def test_sources_side_by_side_repeat_by_seed(learner: Learner) -> None:
    found = latent.compare_sources(learner, 4, steps=3, seed=1)
    assert list(found) == ["amortizer", "energy"]
    assert all(images.shape == (4, 1, 8, 8) for images in found.values())
    again = latent.compare_sources(learner, 4, steps=3, seed=1)
    other = latent.compare_sources(learner, 4, steps=3, seed=2)
    for source, images in found.items():
        assert (again[source] == images).all() and not (other[source] == images).all()


def test_a_walk_is_one_chain_seen_at_many_steps(learner: Learner) -> None:
    steps, energies, images = zip(*latent.walk(learner, 3, 40, seed=0), strict=True)
    assert steps[0] == 0 and steps[-1] == 40 and len(steps) == 26
    assert all(np.isfinite(energies)) and images[0].shape == (3, 1, 8, 8)
    assert not (images[0] == images[-1]).all()
    at_20 = dict(zip(steps, images, strict=True))[19]
    assert (list(latent.walk(learner, 3, 19, seed=0))[-1][2] == at_20).all()


def test_posterior_samples_have_a_spread(learner: Learner) -> None:
    x = torch.zeros(1, 1, 8, 8)
    found = latent.posterior_samples(learner, x, 6, steps=2, seed=0)
    assert found.samples.shape == (6, 1, 8, 8) and found.spread.shape == (1, 8, 8)
    torch.testing.assert_close(found.spread[0], found.samples.std(0)[0])
    assert found.mse == pytest.approx(float(found.mean.square().mean()), rel=1e-5)
    assert found.distance > 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: latent.compare_sources(model, 10**6), "n must lie between 1 and 64"),
        (lambda model: latent.compare_sources(model, 4, 10**9), "steps must lie between"),
        (lambda model: latent.compare_sources(model, 4, 1, -1), "seed must lie between"),
        (lambda model: list(latent.walk(model, 4, 10**9)), "steps must lie between"),
        (lambda model: latent.posterior_samples(model, torch.zeros(1, 1, 8, 8), 999), "n must lie"),
    ],
)
def test_requests_beyond_the_limits_are_refused(learner: Learner, call: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        call(learner)  # type: ignore[operator]


def test_a_drawing_becomes_a_digit_of_mnist_size_in_the_middle() -> None:
    ink = np.zeros((280, 280), np.uint8)
    ink[20:120, 200:220] = 255  # a one, far from the middle
    x = latent.as_digit(ink, (1, 28, 28))
    light = (x[0, 0] > 0).nonzero()
    assert x.shape == (1, 1, 28, 28) and x.min() == -1
    assert light[:, 0].max() - light[:, 0].min() + 1 == 20
    assert (light.double().mean(0) - 13.5).abs().max() < 1
    with pytest.raises(BadInput, match="must be drawn first"):
        latent.as_digit(np.zeros((280, 280), np.uint8), (1, 28, 28))


def test_a_picture_is_scaled_and_can_be_inverted() -> None:
    pixels = np.full((3, 10, 20), 255, np.uint8)
    x = latent.as_image(pixels, (1, 8, 8))
    torch.testing.assert_close(x, torch.ones(1, 1, 8, 8))
    torch.testing.assert_close(latent.as_image(pixels, (1, 8, 8), invert=True), -x)


def test_models_are_opened_once_and_by_name(tmp_path: Path) -> None:
    models = Models()
    assert models.names == list(packaged())
    models = Models([tmp_path / "mine"])
    assert models.names[0] == "mine" and models.name_of(tmp_path / "mine") == "mine"
    with pytest.raises(BadInput, match="model must be one of mine"):
        models.open("../../etc")
    with pytest.raises(BadInput):
        models.open("mine")  # there is no such folder


def test_sheets_and_heat_maps_are_pictures() -> None:
    images = torch.linspace(-1, 1, 3 * 64).view(3, 1, 8, 8)
    picture = sheet(images, 2)
    assert picture.size == (2 * 58 + 2, 2 * 58 + 2)
    assert picture.getpixel((2, 2)) == (0, 0, 0)
    over = heat(images, torch.rand(3, 8, 8))
    assert over.shape == (3, 3, 8, 8) and over.abs().max() <= 1
    with pytest.raises(BadInput, match="images must have shape"):
        sheet(torch.zeros(0, 1, 8, 8))
