"""Which part of a model is behind: rows that are what they say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from damc.data import Images, load_images
from damc.errors import BadInput
from damc.latent import LatentModel
from damc.learn import Learner
from damc.learn.sources import Draw, Infer
from damc.tasks.decompose import DECODER, FITTED, behind, posterior_images
from damc.tasks.evaluate import choose_features, evaluate

GRAY = torch.randint(0, 256, (600, 1, 4, 4), generator=torch.Generator().manual_seed(0))


class Exact(Learner):
    """A decoder that is the identity, exact inference, and a source that is far away."""

    name = "exact"
    inference = "encoder"

    def __init__(self) -> None:
        decoder = nn.Unflatten(1, (1, 4, 4))
        super().__init__(model=LatentModel(decoder, None, 16, 0.3))

    def draws(self) -> Mapping[str, Draw]:
        return {"far": lambda n, _, g: torch.randn(n, 16, generator=g) * 0.05 + 0.9}

    def inferences(self) -> Mapping[str, Infer]:
        return {"encoder": lambda x, steps, noise, generator: x.flatten(1)}


class Blind(Exact):
    inference = None


@pytest.fixture
def images() -> Images:
    return load_images(GRAY.to(torch.uint8).numpy())


def test_the_decoders_row_is_of_other_images_than_the_real_ones(images: Images) -> None:
    rows = dict(posterior_images(Exact(), images, 100, after=200, seed=0))
    assert list(rows) == [DECODER, *FITTED]
    assert rows[DECODER].equal(images.batch(torch.arange(200, 300)))
    last = dict(posterior_images(Exact(), images, 100, after=5000, seed=0))
    assert last[DECODER].equal(images.batch(torch.arange(500, 600)))


def test_the_gaussian_row_has_the_moments_of_the_posterior_samples(images: Images) -> None:
    rows = dict(posterior_images(Exact(), images, 600, after=0, seed=0))
    drawn, real = rows[next(iter(FITTED))].flatten(1), images.batch(torch.arange(600)).flatten(1)
    error: Tensor = (drawn.mean(0) - real.mean(0)) / real.std(0) * (600 / 2) ** 0.5
    assert error.abs().max() < 4.5
    assert (drawn.std(0) / real.std(0) - 1).abs().max() < 0.2


def test_evaluate_says_which_part_is_behind(images: Images, tmp_path: Path) -> None:
    features = choose_features("pixel-pca", images)
    options = {"cache": tmp_path, "n": 200, "real": 300, "floor": False}
    plain = evaluate(Exact(), images, images, features, **options)  # type: ignore[arg-type]
    found = evaluate(
        Exact(),
        images,
        images,
        features,
        decompose=True,
        **options,  # type: ignore[arg-type]
    )
    assert set(found.distances) - set(plain.distances) == {DECODER, *FITTED}
    kernel = {name: pair[1].value for name, pair in found.distances.items()}
    assert kernel[DECODER] < 0.05 < kernel["exact"]
    assert found.notes[0] == behind(kernel, {"far": "exact"}) and not plain.decomposition
    assert f"far {kernel['exact'] - kernel[DECODER]:+.4f}" in found.notes[0]
    assert found.results["table"][2]["of"] == DECODER


def test_a_method_without_inference_is_refused(images: Images) -> None:
    with pytest.raises(BadInput, match="one that can infer, got exact"):
        next(iter(posterior_images(Blind(), images, 10, after=0, seed=0)))
