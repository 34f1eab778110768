"""`damc train-inversion` and `damc invert`, from a decoder trained by `damc train-gan`."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from damc.inversion.stylegan_encoder import StyleEncoder

GAN = ["--size", 8, "--width", 8, "--widest", 8, "--style", 4, "--batch", 8, "--samples", 40]
TINY = ["--batch", 8, "--set", "encoder_iterations=1", "warmup_iterations=1", "posterior_steps=2"]


@pytest.fixture(scope="module")
def gan(damc: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("gan") / "run"
    done = damc("train-gan", "digits", "--run", folder, "--iterations", 2, *GAN)
    assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def trained(damc: Any, gan: Path) -> Path:
    folder = gan.parent / "inversion"
    done = damc("train-inversion", gan, "--run", folder, "--iterations", 3, *TINY)
    assert done.code == 0, done.err
    assert "amortizer_loss" in done.out
    return folder


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 2 and "Traceback" not in outcome.err, outcome
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("damc: ") and all(word in last for word in words), last


@pytest.mark.parametrize("method", ["damc", "enc", "lebm-1x"])
def test_methods_write_codes_tables_and_pictures(
    damc: Any, trained: Path, tmp_path: Path, method: str
) -> None:
    words = ["invert", "--decoder", trained, "--method", method, "--n", 5, "--out", tmp_path]
    done = damc(*words, "--iterations", 3)
    assert done.code == 0, done.err
    codes = np.load(tmp_path / "codes.npy")
    assert codes.shape == (5, 16) and np.isfinite(codes).all()
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["method"] == method and found["images"] == 5
    assert found["evaluated_on"] == "test images"
    assert found["perceptual_network"] == "none, pixels alone"
    with (tmp_path / "inversions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert np.mean([float(row["mse"]) for row in rows]) == pytest.approx(found["mse"], rel=1e-5)
    assert f"{found['mse']:.4g}" in done.out and (tmp_path / "inversions.png").is_file()
    if method == "damc":
        assert np.load(tmp_path / "samples.npy").shape == (4, 5, 16)
        assert found["pixel_spread"] > 0 and (tmp_path / "samples.png").is_file()


def test_opt_needs_the_decoder_alone(damc: Any, gan: Path, tmp_path: Path) -> None:
    for decoder in (gan, gan / "decoder.safetensors"):
        words = ["invert", "--decoder", decoder, "--method", "opt", "--decoder-images", 3]
        done = damc(*words, "--out", tmp_path, "--iterations", 20, "--rate", 0.1)
        assert done.code == 0, done.err
        found = json.loads((tmp_path / "results.json").read_text())
        assert found["mse"] < found["start_mse"]
        assert found["evaluated_on"] == "the decoder's own images"


def test_a_gan_run_is_trained_for_if_need_be(damc: Any, gan: Path, tmp_path: Path) -> None:
    words = ["invert", "--decoder", gan, "--n", 2, "--iterations", 1, "--train-iterations", 1]
    words += ["--method", "enc"]
    done = damc(*words, "--out", tmp_path)
    assert done.code == 0, done.err
    assert (
        "training the learned parts of enc in" in done.out
        and (gan / "inversion" / "config.json").is_file()
    )
    again = damc(*words, "--out", tmp_path / "again")
    assert again.code == 0 and "training" not in again.out
    codes = [np.load(folder / "codes.npy") for folder in (tmp_path, tmp_path / "again")]
    assert np.array_equal(*codes)
    # An encoder alone is no sampler, which is said before anything is trained.
    before = (gan / "inversion" / "metrics.jsonl").read_bytes()
    longer = [*words, "--method", "damc", "--train-iterations", 2]
    refused(
        damc(*longer, "--out", tmp_path / "damc"),
        "train-iterations must be more than 1000",
        "encoder alone, got 2",
    )
    assert (gan / "inversion" / "metrics.jsonl").read_bytes() == before
    refused(damc("invert", "--decoder", gan / "inversion", "--n", 1), "got 1", "damc")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--samples", 1], "samples must be 0, for none, or at least 2, got 1"),
        (["--method", "enc", "--sampler", "langevin"], "sampler must be 'adam'"),
        (["--rate", 0], "rate must be positive"),
        (["--iterations", -5], "iterations must be at least 0, got -5"),
        (["--sampler", "langevin", "--rate", 0.1], "rate must be left out with --sampler langevin"),
        (["--resize"], "resize must be left out without IMAGES"),
        (["--decoder-images", 2, "--resize"], "--resize must be left out with --decoder-images"),
        (["--method", "opt", "--train-iterations", 3], "for the method opt, which trains nothing"),
        (["--method", "opt", "--encoder", "e.pth"], "encoder must be left out for the method opt"),
        (["--n", 0], "n must be at least 1, got 0"),
        (["--batch", 0], "batch must be at least 1, got 0"),
        (["--train-iterations", 3], "train-iterations must be more than 1000"),
        (["--out", "/etc/hostname/none"], "could not write in /etc/hostname/none"),
    ],
)
def test_nothing_is_trained_for_what_is_refused(
    damc: Any, gan: Path, tmp_path: Path, options: list[Any], said: str
) -> None:
    decoder = shutil.copytree(gan, tmp_path / "gan", ignore=lambda *_: ["inversion"])
    done = damc("invert", "--decoder", decoder, *options)
    refused(done, said)
    assert "training" not in done.out and not (decoder / "inversion").exists()


def test_bad_input_is_one_sentence(damc: Any, gan: Path, trained: Path, tmp_path: Path) -> None:
    words = ["invert", "--decoder", trained, "--out", tmp_path / "out"]
    np.save(tmp_path / "large.npy", np.zeros((2, 9, 9), np.uint8))
    refused(damc(*words, tmp_path / "large.npy"), "1x9x9", "1x8x8", "--resize")
    np.save(tmp_path / "nan.npy", np.full((2, 1, 8, 8), np.nan, np.float32))
    refused(damc(*words, tmp_path / "nan.npy"), "nan")
    refused(
        damc(*words, "--method", "enc", "--samples", 3), "must be damc to draw posterior samples"
    )
    refused(damc(*words, "--decoder-images", 0), "at least 1")
    refused(damc(*words, "--train-iterations", 9), "which trains nothing, got 9")
    refused(
        damc(*words, "--vgg", "vgg16.pth"), "encoder and vgg must be left out for an inversion run"
    )
    refused(damc("train-inversion", trained, "--run", tmp_path / "run"), "got the inversion run")
    refused(
        damc("train-inversion", gan, "--run", tmp_path / "run", "--set", "color=red"), "no setting"
    )
    # Decoders of another kind, of another architecture, damaged, or not finite.
    refused(damc("invert", "--decoder", tmp_path / "none.pth"), "got no file at")
    encoder = StyleEncoder(8, 1, style=4, base=4, widest=8).state_dict()
    save_file(encoder, tmp_path / "encoder.safetensors")
    refused(damc("invert", "--decoder", tmp_path / "encoder.safetensors"), "must have the key")
    file = gan / "decoder.safetensors"
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:1000])
    refused(damc("invert", "--decoder", tmp_path / "cut.safetensors"), "truncated")
    from damc.disk.tensors import load_weights

    weights = load_weights(file)
    weights["synthesis.layer0.const"][0, 0, 0, 0] = torch.nan
    save_file(weights, tmp_path / "nan.safetensors")
    refused(damc("invert", "--decoder", tmp_path / "nan.safetensors"), "must have finite values")
    refused(
        damc("invert", "--decoder", file, "--decoder-images", 2), "train-inversion", "--run DIR"
    )
    refused(damc("invert", "--decoder", file, "--method", "opt"), "images must be given")
    assert not (tmp_path / "out").exists() and not (tmp_path / "run").exists()
