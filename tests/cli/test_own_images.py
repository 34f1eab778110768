"""`damc train --data` on images of one's own, without a preset."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from damc.data import load_images
from damc.errors import BadInput
from damc.train.origin import recall
from damc.train.run import Run
from tests.reference.pictures import mixed_folder

TINY = ["--batch", 8, "--set", "posterior_steps=2", "prior_steps=2", "updates=1", "start_steps=2"]
TINY += ["--set", "test_steps=1", "prior_sample_steps=2", "--pictures-every", 1000]


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 2, outcome
    (line,) = outcome.err.strip().splitlines()
    assert line.startswith("damc: ") and "Traceback" not in line
    for word in words:
        assert word in line, line


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    mixed_folder(folder / "mixed")
    return folder


@pytest.fixture(scope="module")
def run(damc: Any, home: Path) -> Path:
    """A run of two iterations on the mixed folder, and what it printed."""
    words = ["train", "--data", "mixed", "--skip-corrupt", "--iterations", 2, *TINY]
    done = damc(*words, cwd=home)
    assert done.code == 0, done.err
    (home / "said.txt").write_text(done.out)
    return home / "runs" / "mixed"


def test_a_corrupt_picture_is_refused_before_training(damc: Any, home: Path) -> None:
    done = damc("train", "--data", "mixed", "--run", "none", cwd=home)
    refused(done, "39-broken.png", "not a readable picture", "--skip-corrupt")
    assert not (home / "none").exists()


def test_forty_pictures_of_every_kind_are_summarized_and_trained_on(run: Path, home: Path) -> None:
    said = (home / "said.txt").read_text()
    assert said.count("read  ") == 1 and "39 of 40 pictures" in said
    for words in (
        *("39-broken.png", "6 alpha laid over white", "6 turned upright by EXIF"),
        *("5 CMYK to RGB", "5 palette to RGB", "39 sizes", "33 color, 6 gray"),
        *("12 used: 0 to 4,095 span [-1, 1]", "4 held-out images", "35 of 44x44 in color"),
    ):
        assert words in said, words
    table = json.loads((run / "results.json").read_text())
    assert table["iteration"] == 2 and table["images"] == 4
    assert table["evaluated_on"] == "held-out images"
    assert "12 used" in (run / "report.html").read_text()


def test_the_held_out_images_are_stored_by_content(damc: Any, run: Path, home: Path) -> None:
    stored = json.loads((run / "heldout.json").read_text())
    assert len(stored["held_out"]) == 4 and len(stored["train"]) == 35
    origin = recall(Run.open(run))
    assert origin is not None
    assert sorted(origin.unseen().images.hashes()) == sorted(stored["held_out"])
    assert sorted(origin.train().hashes()) == sorted(stored["train"])
    done = damc("reconstruct", run, "--out", home / "out")
    assert done.code == 0 and "held-out images" in done.out, done.err
    # Given again under another name, they are read and resized as in training.
    names = {path.name: path for path in (home / "mixed").iterdir()}
    shutil.copy(names["01-12bit.png"], home / "one.png")
    assert damc("reconstruct", run, home / "one.png", "--out", home / "out").code == 0


def test_twelve_bits_reach_the_network_as_the_whole_range(run: Path) -> None:
    origin = recall(Run.open(run))
    assert origin is not None and origin.reading.bits == {"PNG": 12}
    (images,) = origin.load((Path(origin.source) / "01-12bit.png",))
    x = images.batch(torch.tensor([0]))
    assert x.shape == (1, 3, 44, 44) and x.min() == -1 and x.max() == 1


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with twenty pictures of 12x8."""
    folder = tmp_path_factory.mktemp("small") / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(20):
        Image.fromarray(rng.integers(0, 256, (8, 12), np.uint8)).save(folder / f"{i}.png")
    return folder


def test_a_run_is_resumed_from_its_folder_alone(damc: Any, small: Path) -> None:
    """Two iterations and two more are four, bit for bit."""
    words = ["train", "--data", "pictures", *TINY, "--seed", 3, "--set", "horizon=4"]
    whole = damc(*words, "--iterations", 4, "--run", "whole", cwd=small.parent)
    assert whole.code == 0, whole.err
    begun = damc(*words, "--iterations", 2, "--run", "parts", cwd=small.parent)
    assert begun.code == 0, begun.err
    done = damc("train", "--run", "parts", cwd=small.parent)
    assert done.code == 0, done.err
    a, b = (Run.open(small.parent / name).load() for name in ("whole", "parts"))
    assert a.iteration == b.iteration == 4
    assert all(torch.equal(a.weights[key], b.weights[key]) for key in a.weights)


def test_changed_images_are_not_trained_on(damc: Any, small: Path) -> None:
    run = small.parent / "parts"
    if not run.exists():
        words = ["train", "--data", "pictures", *TINY, "--iterations", 1, "--run", "parts"]
        assert damc(*words, cwd=small.parent).code == 0
    other = small.parent / "other"
    shutil.copytree(small, other)
    (other / "0.png").unlink()
    Image.fromarray(np.zeros((8, 12), np.uint8)).save(other / "new.png")
    Image.fromarray(np.ones((8, 12), np.uint8)).save(other / "new2.png")
    before = (run / "heldout.json").read_bytes()
    done = damc("train", "--run", run, "--data", other, "--iterations", 9)
    refused(done, "must be those that", "2 new ones and 1 missing", "another run folder")
    assert (run / "heldout.json").read_bytes() == before


@pytest.mark.slow
def test_any_shape_and_any_kind_of_file(damc: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (12, 3, 9, 15), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=array)
    words = ["train", "--iterations", 1, *TINY]
    done = damc(*words, "--data", "x.npz", cwd=tmp_path)
    assert done.code == 0 and "11 of 15x9 in color" in done.out, done.err
    assert load_images(tmp_path / "x.npz").shape == (3, 9, 15)
    (tmp_path / "in").mkdir()
    lines = ["path,split"]
    for i in range(6):
        Image.fromarray(array[i].transpose(1, 2, 0)).save(tmp_path / "in" / f"{i}.png")
        lines.append(f"in/{i}.png,{'test' if i < 2 else 'train'}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    done = damc(*words, "--data", "list.csv", "--size", "16x12", cwd=tmp_path)
    assert done.code == 0 and "4 of 16x12 in color" in done.out, done.err
    assert "2 test images" in done.out and not (tmp_path / "runs/list/heldout.json").exists()


def test_dark_arrays_are_asked_about(damc: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 17, (20, 8, 8), np.uint8))
    words = ["train", "--data", "x.npy", "--iterations", 1, *TINY]
    refused(damc(*words, cwd=tmp_path), "0 to 16", "--range 0 16", "--range 0 255")
    assert not (tmp_path / "runs").exists()
    done = damc(*words, "--range", 0, 16, cwd=tmp_path)
    assert done.code == 0 and "0 to 16 span [-1, 1]" in done.out, done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["needs a PRESET, or --data"]),
        (["--data", "nowhere"], ["'nowhere' is neither a known data set nor a file"]),
        (["--data", "./nowhere"], ["nowhere does not exist"]),
        (["--data", "empty"], ["contains no pictures"]),
        (["--data", "tiny"], ["8 pixels or more, got 6x6"]),
        (["--data", "nan.npy"], ["nan.npy has NaN or infinite pixels"]),
        (["--data", "flat.npy"], ["flat.npy must be images", "(40, 8)"]),
        (["--data", "text.csv"], ["missing files"]),
        (["--data", "x.npy", "--size", "big"], ["WIDTHxHEIGHT", "'big'"]),
        (["--data", "x.npy", "--size", "4x700"], ["8 to 512 pixels a side"]),
        (["--data", "x.npy", "--test-fraction", "1.5"], ["must lie in [0, 1), got 1.5"]),
        (["--data", "x.npy", "--range", "9", "1"], ["the smaller first"]),
        (["--data", "x.npy", "--iterations", "-5"], ["iterations must be at least 1, got -5"]),
        (["--data", "x.npy", "--heldout", "1"], ["heldout must be left out"]),
        (["--data", "x.npy", "--method", "vea"], ["'vea'"]),
        (["--data", "x.npy", "--background", "red"], ["white", "'red'"]),
        (["digits-small", "--size", "9"], ["size must be left out with a preset"]),
        (["digits-small", "--preset", "mnist-small"], ["preset must be given once"]),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(
    damc: Any, tmp_path: Path, words: list[str], said: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "tiny").mkdir()
    Image.fromarray(np.zeros((6, 6), np.uint8)).save(tmp_path / "tiny" / "x.png")
    np.save(tmp_path / "nan.npy", np.full((4, 8, 8), np.nan))
    np.save(tmp_path / "flat.npy", np.zeros((40, 8), np.uint8))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (9, 8, 8), np.uint8))
    (tmp_path / "text.csv").write_text("a.png\n")
    before = sorted(tmp_path.rglob("*"))
    refused(damc("train", *words, cwd=tmp_path), *said)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_preset_holds_images_out_too(damc: Any, trained: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.integers(0, 256, (30, 8, 8), np.uint8))
    words = ["train", "--preset", "digits-small", "--data", "x.npy", "--iterations", 1]
    done = damc(*words, *trained.tiny, "--run", "run", cwd=tmp_path)
    assert done.code == 0 and "3 held-out images" in done.out, done.err
    done = damc(*words, *trained.tiny, "--run", "all", "--test-fraction", 0, cwd=tmp_path)
    assert done.code == 0 and "No verdict on unseen images" in done.out, done.err


def test_test_images_that_cannot_be_read_are_not_passed_over(damc: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        (tmp_path / "in" / part).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, (8, 8), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "in" / part / f"{i}.png")
    broken = tmp_path / "in" / "test" / "1.png"
    broken.write_bytes(broken.read_bytes()[:70])
    refused(damc("train", "--data", "in", cwd=tmp_path), "test/1.png", "--skip-corrupt")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "reading",
    [5, {"background": "red"}, {"bits": {"PNG": "12"}}, {"bits": 3}, {"color": 1}],
)
def test_a_forged_way_of_reading_is_one_sentence(tmp_path: Path, reading: object) -> None:
    data = {"name": "digits", "heldout": None, "resize": False, "reading": reading}
    run = Run(tmp_path, {"data": data, "config": {"networks": {"shape": [1, 8, 8]}}})
    with pytest.raises(BadInput, match="must say how its images were read"):
        recall(run)


def test_a_run_is_not_written_among_the_images_it_learns_from(damc: Any, tmp_path: Path) -> None:
    """Its pictures would be training images, and it could not be resumed."""
    for i in range(12):
        Image.fromarray(np.full((8, 8), 20 * i, dtype=np.uint8)).save(tmp_path / f"{i}.png")
    for words in (
        ("train", "--data", tmp_path, "--run", tmp_path, "--iterations", 1, *TINY),
        ("train", "--data", tmp_path, "--run", tmp_path / "a" / "b", "--iterations", 1, *TINY),
        ("train-detector", tmp_path, "--out", tmp_path / "detector"),
    ):
        done = damc(*words)
        assert done.code == 2 and "must lie outside of the folder of images" in done.err
    assert len(list(tmp_path.iterdir())) == 12


def test_options_that_a_run_was_not_begun_with_are_refused(damc: Any, run: Path) -> None:
    for option, value in (
        *(("--heldout", 3), ("--size", 99), ("--test-fraction", 0.3), ("--background", "black")),
    ):
        refused(damc("train", "--run", run, option, value), "must be that of the run", str(value))


def test_flags_that_a_run_was_not_begun_with_are_refused(damc: Any, trained: Any) -> None:
    for flag in ("--skip-corrupt", "--resize"):
        done = damc("train", "--run", trained.folder, flag)
        refused(done, "must be that of the run", "False, got True")


@pytest.mark.parametrize("option", [("--max-minutes", -1), ("--tensorboard",)])
def test_a_refused_training_leaves_no_run(damc: Any, tmp_path: Path, option: tuple[Any]) -> None:
    if option == ("--tensorboard",) and importlib.util.find_spec("tensorboard") is not None:
        pytest.skip("tensorboard is installed")
    words = ("--data", "digits", "--run", tmp_path / "run", "--iterations", 1, *TINY, *option)
    assert damc("train", "digits-small", *words).code == 2
    assert not (tmp_path / "run").exists()


def test_a_package_of_own_images_has_the_name_of_the_run(damc: Any, run: Path) -> None:
    done = damc("package", run, "--megabytes", 50, cwd=run.parent.parent)
    assert done.code == 0 and done.out.startswith("models/mixed ")
