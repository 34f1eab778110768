"""Bad input and faults, each for real: one clear sentence, exit code 2, and nothing harmed."""

from __future__ import annotations

import os
import pickle
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from damc.disk import seal, unseal
from damc.train.run import Run


def refused(outcome: Any, *words: str) -> None:
    """The command said one sentence with these words, and nothing else went wrong."""
    assert outcome.code == 2, outcome
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("damc: "), outcome.err
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in last, last


def still_good(damc: Any, folder: Path, iteration: int) -> None:
    """The run's newest checkpoint is that one, and it loads and draws."""
    assert Run.open(folder).checkpoints()[-1] == iteration
    assert damc("sample", folder, "--n", 2, "--source", "gaussian").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], ["'trian'", "did you mean 'train'"]),
        (["train", "digit-small"], ["'digit-small'", "did you mean 'digits-small'"]),
        (["train", "digits-small", "--set", "sgma=1"], ["did you mean 'sigma'"]),
        (["train", "digits-small", "--set", "updates=1.5"], ["updates", "whole number"]),
        (["train", "digits-small", "--set", "sigma"], ["name=value"]),
        (["train", "digits-small", "--data", "mnst"], ["did you mean 'mnist'"]),
        (["train", "digits-small", "--heldout", "12"], ["class 12"]),
        (["train", "digits-small", "--iterations", "0"], ["at least 1"]),
        (["train", "digits-small", "--threads", "0"], ["at least 1"]),
        (["train", "digits-small", "--data", "mnist-5k"], ["1x28x28", "1x8x8", "--resize"]),
        (["train", "mnist-small", "--data-root", "none"], ["none/mnist", "idx"]),
        (["train", "digits-small", "--precision", "17"], ["17"]),
        (["train", "digits-small", "--batch", "0"], ["batch must be at least 1, got 0"]),
        (["train"], ["needs a PRESET, or --data", "damc train --help"]),
        (["train", "digits-small", "--iterations", "-5"], ["iterations must be", "got -5"]),
        (["train", "--preset", "digit-small"], ["did you mean 'digits-small'"]),
        (["train", "digits-small", "--checkpoint-every", "0"], ["checkpoint-every must be"]),
        (["sample", "nowhere", "--n", "0"], ["n must be at least 1, got 0"]),
        (["reconstruct", "nowhere", "--n", "-1"], ["n must be at least 1, got -1"]),
        (["evaluate", "nowhere", "--n", "0"], ["n must be at least 1, got 0"]),
        (["evaluate", "nowhere", "--likelihood-images", "0"], ["images must be at least 1, got 0"]),
        (["evaluate", "nowhere", "--likelihood-images", "9"], ["come with --likelihood", "got 9"]),
        (["transitions", "nowhere", "--chains", "0"], ["chains must be at least 1, got 0"]),
        (["cost", "digits-small", "--rounds", "0"], ["rounds must be at least 1, got 0"]),
        (["toy", "--iterations", "0"], ["iterations must be at least 1, got 0"]),
        (["report", "nowhere"], ["no folder nowhere"]),
        (["reconstruct", "nowhere"], ["no folder nowhere"]),
        (["evaluate", "nowhere", "--features", "pixel-pca"], ["no folder nowhere"]),
        (["transitions", "nowhere"], ["no folder nowhere"]),
        (["cost", "digit-small"], ["did you mean 'digits-small'"]),
        (["convert", "nowhere.pth"], ["nowhere.pth"]),
        (["convert", "x.pth", "--heldout", "1"], ["--heldout must come with --preset"]),
        (["convert", "x.pth", "--set", "sigma=1"], ["--set must come with --preset"]),
        (["convert", "x.pth", "--preset", "svhn", "--out", "y"], ["--out must be left out", "y"]),
        (["models", "mnist-small", "--out", "x"], ["out must be left out with a NAME, got x"]),
        (["reproduce", "list", "--out", "x"], ["--out must be left out with list, got x"]),
        (["train", "--data", "digits", "--resize"], ["resize must be left out without a preset"]),
        (
            ["train", "digits-small", "--module", "a:b", "--method", "vae"],
            ["method must be left out with --module", "got vae"],
        ),
        (["train-gan", "nowhere"], ["'nowhere' is neither"]),
        (["train-gan", "digits", "--iterations", "-5"], ["iterations must be", "-5"]),
        (["train-inversion", "nowhere"], ["nowhere"]),
        (["train-inversion", "nowhere", "--iterations", "0"], ["iterations must be at least 1"]),
        (["invert", "--decoder", "nowhere"], ["nowhere"]),
        (["download", "imagenet"], ["'mnist', 'cifar10', 'svhn'", "'imagenet'"]),
        (["download", "mnist", "--mirror", "ftp://x"], ["http or https"]),
        (["reproduce", "nothing"], ["nothing"]),
        (["toy", "--iterations", "x"], ["--iterations must be a whole number, got 'x'; see"]),
        (["reproduce", "steps", "--minutes", "x"], ["--minutes must be a number, got 'x'; see"]),
        (["train", "digits-small", "--seed", "abc"], ["--seed", "whole number", "'abc'"]),
        (["train", "digits-small", "--iteratons", "5"], ["did you mean --iterations"]),
        (
            ["toy", "--kernel", "foo"],
            ["--kernel must be one of 'independence', 'langevin', 'mala'", "'foo'"],
        ),
        (["sample", "nowhere", "--n"], ["--n must have a value"]),
        (["reproduce", "steps", "--features", "foo"], ["inception, pixel-pca", "'foo'"]),
        (["reproduce", "steps", "--features", "inception", "--inception", "no.pt"], ["no.pt"]),
        (["sample", "nowhere"], ["no folder nowhere"]),
        (["sample", "."], ["not a run folder"]),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    damc: Any, tmp_path: Path, words: list[str], said: list[str]
) -> None:
    outcome = damc(*words, cwd=tmp_path)
    refused(outcome, *said)
    assert len(outcome.err.strip().splitlines()) == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["sample", "RUN", "--seed"],
        ["train", "digits-small", "--seed"],
        ["reproduce", "steps", "--seeds"],
    ],
)
@pytest.mark.parametrize("seed", [-1, 2**70])
def test_a_seed_that_no_generator_takes(damc: Any, words: list[str], seed: int) -> None:
    refused(damc(*words, seed), f"seed must be from 0 to 4294967295, got {seed}")


def test_an_unknown_option_is_code_2_and_names_the_nearest(damc: Any) -> None:
    done = damc("train", "digits-small", "--iteration", 3)
    assert done.code == 2 and "--iterations" in done.err and "Traceback" not in done.err


@pytest.mark.parametrize("damage", ["truncated", "other"])
def test_a_corrupt_data_file(damc: Any, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "mnist" / "train-images-idx3-ubyte"
    file.parent.mkdir()
    whole = struct.pack(">IIII", 2051, 50, 28, 28) + bytes(50 * 784)
    file.write_bytes(
        whole[:-100] if damage == "truncated" else random.Random(0).randbytes(len(whole))
    )
    done = damc("train", "mnist-small", "--data-root", tmp_path, "--run", tmp_path / "run")
    refused(done, "train-images-idx3-ubyte")
    assert not (tmp_path / "run").exists()


def test_pictures_of_mixed_sizes(damc: Any, tmp_path: Path) -> None:
    from PIL import Image

    for i, side in enumerate([8, 8, 9]):
        Image.fromarray(np.zeros((side, side), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    done = damc("train", "digits-small", "--data", tmp_path, "--run", tmp_path / "run")
    refused(done, "must be of one size", "8x8", "9x9", "--size")


def test_files_that_commands_cannot_use(damc: Any, trained: Any, tmp_path: Path) -> None:
    """A wrong shape, NaN, a corrupt picture and no picture, for commands with IMAGES."""
    np.save(tmp_path / "shape.npy", np.full((2, 9, 9), 200, np.uint8))
    np.save(tmp_path / "nan.npy", np.full((2, 8, 8), np.nan))
    (tmp_path / "corrupt.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing more")
    (tmp_path / "text.txt").write_text("text")
    said = {"shape.npy": "1x9x9", "nan.npy": "NaN", "corrupt.png": "not a readable picture"}
    said |= {"text.txt": "unknown format", "none": "does not exist"}
    for name, words in said.items():
        refused(damc("reconstruct", trained.folder, tmp_path / name), words)
        refused(
            damc("evaluate", trained.folder, "--unseen", tmp_path / name, "--n", 3),
            words,
        )


def test_pixels_that_are_not_numbers(damc: Any, tmp_path: Path) -> None:
    x = np.zeros((20, 8, 8), dtype=np.float32)
    x[7, 3, 3] = np.nan
    np.save(tmp_path / "x.npy", x)
    done = damc("train", "digits-small", "--data", tmp_path / "x.npy", "--run", tmp_path / "run")
    refused(done, "x.npy")
    assert "nan" in done.err.lower() or "finite" in done.err
    assert not (tmp_path / "run").exists()


def test_an_array_of_pickles_is_not_opened(damc: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([_Trap(tmp_path)], dtype=object), allow_pickle=True)
    done = damc("train", "digits-small", "--data", tmp_path / "x.npy", "--run", tmp_path / "run")
    refused(done, "x.npy")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("change", [["--seed", 9], ["--batch", 8], ["--set", "sigma=0.9"]])
def test_a_folder_with_another_run(
    damc: Any, trained: Any, copied: Path, change: list[object]
) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    refused(damc(*trained.words, "--run", copied, *change), "other settings")
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_a_folder_with_a_run_on_other_images(damc: Any, trained: Any, copied: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    np.save(copied.parent / "x.npy", x)
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    done = damc(*trained.words, "--run", copied, "--data", copied.parent / "x.npy")
    refused(done, "other settings", "data")
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_a_folder_with_another_models_weights(damc: Any, trained: Any, copied: Path) -> None:
    """Weights that are intact, but of other settings than those in the folder."""
    config = unseal((copied / "config.json").read_bytes(), "config.json")
    config["config"]["networks"]["latent_dim"] -= 1
    (copied / "config.json").write_bytes(seal(config))
    refused(damc("sample", copied), "has only damaged checkpoints")


@pytest.mark.parametrize("name", ["weights.safetensors", "resume.safetensors"])
def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    damc: Any, trained: Any, copied: Path, name: str
) -> None:
    file = copied / "checkpoints" / "00000030" / name
    file.write_bytes(file.read_bytes()[:1000])
    done = damc("sample", copied, "--n", 2)
    assert done.code == 0 and "checkpoint 30" in done.err and "damaged" in done.err
    if name == "resume.safetensors":
        return
    # Training from there makes the lost iterations again.
    assert damc(*trained.words, "--run", copied).code == 0
    whole = trained.folder / "checkpoints" / "00000030" / name
    assert file.read_bytes() == whole.read_bytes()


def test_only_truncated_weights(damc: Any, copied: Path) -> None:
    for file in copied.rglob("weights.safetensors"):
        file.write_bytes(file.read_bytes()[:1000])
    refused(damc("sample", copied), "only damaged checkpoints")


class _Trap:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder / "sprung"),)


def test_a_pickle_in_place_of_weights_is_not_opened(
    damc: Any, copied: Path, tmp_path: Path
) -> None:
    for file in copied.rglob("weights.safetensors"):
        file.write_bytes(pickle.dumps(_Trap(tmp_path)))
    refused(damc("sample", copied), "only damaged checkpoints")
    assert not (tmp_path / "sprung").exists()


def test_a_full_disk_leaves_the_last_checkpoint(damc: Any, trained: Any, copied: Path) -> None:
    words = [*trained.words, "--run", copied, "--iterations", 40]
    refused(damc(*words, "--checkpoint-every", 1, file_limit=100_000), "could not write")
    still_good(damc, copied, 30)
    assert damc(*words, "--checkpoint-every", 10).code == 0
    still_good(damc, copied, 40)


def test_a_full_disk_while_pictures_are_drawn(damc: Any, trained: Any, copied: Path) -> None:
    refused(damc("report", copied, file_limit=1000), "could not write")
    assert (copied / "report.html").read_bytes() == (trained.folder / "report.html").read_bytes()


def test_a_place_that_cannot_be_written(damc: Any, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    refused(damc(*trained.words, "--run", tmp_path / "file" / "run"), "could not", "file")
    refused(damc("sample", trained.folder, "--out", tmp_path / "file" / "out"), "could not")
    refused(damc(*trained.words, "--run", "/proc/damc"), "could not write")


@pytest.mark.parametrize("rate", ["energy_rate=1e6", "amortizer_rate=1e6", "decoder_rate=1e20"])
def test_a_learning_rate_that_explodes(damc: Any, trained: Any, tmp_path: Path, rate: str) -> None:
    run = tmp_path / "run"
    words = ["train", "digits-small", *trained.tiny, "--set", rate, "--iterations", 50]
    done = damc(*words, "--run", run, "--checkpoint-every", 1)
    refused(done, "blew up in iteration")
    saved = Run.open(run).checkpoints()
    for iteration in saved:
        weights = Run.open(run).load(iteration).weights
        assert all(bool(w.isfinite().all()) for w in weights.values())
    if saved:
        assert f"the last good state is iteration {saved[-1]}" in done.err
        still_good(damc, run, saved[-1])
    else:
        assert "nothing was saved" in done.err


def test_a_reader_who_has_enough(tmp_path: Path) -> None:
    """`damc data | head -0`: the pipe closes before anything is written."""
    process = subprocess.Popen(
        [sys.executable, "-m", "damc", "data", "--data-root", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() == 141 and said == b""


def test_a_debugger_sees_the_traceback(damc: Any) -> None:
    done = damc("train", "digit-small", env={"DAMC_DEBUG": "1"})
    assert done.code == 2 and "Traceback" in done.err and "did you mean" in done.err
