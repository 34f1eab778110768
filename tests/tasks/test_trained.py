"""A run folder opened again, and the images to measure it on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from damc.data import load_images
from damc.errors import BadInput
from damc.learn import find_method
from damc.learn.presets import find_preset
from damc.randomness import global_seed
from damc.tasks.reconstruct import reconstruct_run
from damc.tasks.trained import Trained, image_shape
from damc.tasks.training import default_folder, last_checkpoint
from damc.train.loop import fit
from damc.train.origin import Origin
from damc.train.run import Run


@pytest.fixture(scope="module", params=["command", "python"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run as the command line makes it, and one from Python without an origin."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    preset, origin = find_preset("digits-small"), Origin("digits", (1, 8, 8))
    with global_seed(0):
        learner = find_method("vae").from_preset(preset)
    known = {"origin": origin.settings} if request.param == "command" else {}
    images = load_images("digits")
    fit(
        learner, images, iterations=1, run=folder, batch=4, seed=7, progress=False,
        preset=preset.name, **known,
    )  # fmt: skip
    if known:
        origin.remember(folder)
    return Trained.open(folder)


def test_a_run_knows_what_it_is(trained: Trained) -> None:
    assert trained.name == "digits-small" and trained.seed == 7
    assert trained.learner.iteration == 1 and last_checkpoint(trained.run.path) == 1
    assert image_shape(trained.run) == (1, 8, 8)


def test_subjects_are_the_unseen_images_or_those_given(trained: Trained, tmp_path: Path) -> None:
    if trained.origin is None:
        with pytest.raises(BadInput, match="images must be given for .* trained from Python"):
            trained.subjects()
    else:
        subjects = trained.subjects()
        assert subjects.kind == "test images" and len(subjects.sets[0]) == 359
    np.save(tmp_path / "a.npy", np.zeros((3, 8, 8), np.uint8))
    subjects = trained.subjects([tmp_path / "a.npy"])
    assert [len(images) for images in subjects.sets] == [3] and subjects.kind == "the images given"
    found, files = reconstruct_run(trained, subjects, tmp_path / "out")
    assert found.x.shape == found.y.shape == (3, 1, 8, 8)
    assert {path.name for path in files.values()} == {"reconstructions.png", "results.json"}
    with pytest.raises(BadInput, match="steps must be left out, as vae infers without"):
        reconstruct_run(trained, subjects, tmp_path / "out", steps=3)


def test_networks_of_ones_own_have_no_known_shape(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"learner": "damc", "config": {"networks": None}})
    with pytest.raises(BadInput, match="use it from Python"):
        image_shape(run)


def test_default_folders() -> None:
    assert default_folder("mnist") == Path("runs/mnist")
    assert default_folder("mnist", "lebm") == Path("runs/mnist-lebm")
    assert last_checkpoint("nowhere") is None
