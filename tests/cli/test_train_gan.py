"""`damc train-gan`: a run folder, on again, and one sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from damc.inversion.gan import GAN
from damc.inversion.stylegan import load_style_decoder
from damc.train.loading import load
from damc.train.run import Run

TINY = ["--size", 8, "--width", 4, "--widest", 8, "--style", 4, "--batch", 8]
TINY += ["--pictures-every", 4, "--samples", 20]


@pytest.fixture(scope="module")
def folder(damc: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six iterations in one go."""
    run = tmp_path_factory.mktemp("gan") / "run"
    done = damc("train-gan", "digits", "--run", run, "--iterations", 6, *TINY)
    assert done.code == 0, done.err
    assert "pixel-PCA distance, samples" in done.out and str(run / "report.html") in done.out
    return run


def test_a_run_folder_holds_everything(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert results["iteration"] == 6 and results["code"] == "4 x 4"
    assert results["pixel_pca_distance_samples"] > results["pixel_pca_distance_test_images"] > 0
    for name in ("samples_00000004", "samples_00000006", "truncated_00000006", "data", "curves"):
        assert (folder / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png" in (folder / "report.html").read_text()
    learner = load(folder)
    assert isinstance(learner, GAN)
    alone = load_style_decoder(folder / "decoder.safetensors")
    codes = learner.codes(2)
    assert alone.synthesis(codes).equal(learner.decode(codes))


def test_the_same_command_goes_on(damc: Any, folder: Path, tmp_path: Path) -> None:
    words = ["train-gan", "digits", "--run", tmp_path / "run", *TINY]
    assert damc(*words, "--iterations", 2).code == 0
    done = damc(*words, "--iterations", 6)
    assert done.code == 0, done.err
    ours, theirs = (Run.open(path).load() for path in (tmp_path / "run", folder))
    assert ours.iteration == theirs.iteration == 6
    assert all(ours.weights[name].equal(theirs.weights[name]) for name in theirs.weights)


def test_samples_are_drawn_by_the_usual_command(damc: Any, folder: Path, tmp_path: Path) -> None:
    done = damc("sample", folder, "--n", 3, "--out", tmp_path)
    assert done.code == 0, done.err
    assert np.load(tmp_path / "samples.npy").shape == (3, 1, 8, 8)


def test_colors_come_from_the_data(damc: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 6, 5, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    done = damc(
        "train-gan", tmp_path / "x.npy", "--run", tmp_path / "run", "--iterations", 1, *TINY
    )
    assert done.code == 0, done.err
    learner = load(tmp_path / "run")
    assert learner.sample(2).shape == (2, 3, 6, 5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digitz"], "did you mean 'digits'"),
        (["digits", "--size", 12], "a power of two from 8 to 1024"),
        (
            ["mnist-5k", "--size", 16],
            "images must be at most 16x16, as the decoder makes them, got 28x28",
        ),
        (["digits", "--size", 8, "--r1", -1], "r1 must not be negative"),
        (["digits", "--size", 8, "--batch", 0], "batch must be at least 1"),
        (["digits", "--size", 8, "--iterations", 0], "iterations"),
    ],
)
def test_wrong_input_is_one_sentence(
    damc: Any, tmp_path: Path, words: list[Any], sentence: str
) -> None:
    done = damc("train-gan", *words, "--run", tmp_path / "run")
    assert done.code == 2
    assert sentence in done.err and "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_other_settings_do_not_touch_a_run(damc: Any, folder: Path) -> None:
    done = damc("train-gan", "digits", "--run", folder, "--iterations", 8, *TINY, "--r1", 5)
    assert done.code == 2 and "settings.r1 differs" in done.err
    assert Run.open(folder).checkpoints()[-1] == 6
