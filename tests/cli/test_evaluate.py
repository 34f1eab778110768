"""`damc evaluate`: the numbers are those of independent formulas, and bad input is one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor, nn

import damc as library
from damc.data import load_images
from damc.errors import BadInput
from damc.learn import Learner
from damc.metrics.images import mse
from damc.report.measured import keep, kept
from damc.report.page import Section
from damc.tasks.evaluate import choose_features, evaluate
from damc.tasks.generate import generate

PIXELS = ["--features", "pixel-pca", "--n", 100]


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "evaluate" / "results.json").read_text())
    return found


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 2 and "Traceback" not in outcome.err, outcome
    last = outcome.err.strip().splitlines()[-1]
    assert last.startswith("damc: ") and all(word in last for word in words), last


def numpy_frechet(a: Tensor, b: Tensor) -> float:
    """The Frechet distance with SciPy's general matrix root."""
    x, y = a.double().numpy(), b.double().numpy()
    s, t = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    mean = np.square(x.mean(0) - y.mean(0)).sum()
    return float(mean + np.trace(s + t - 2 * np.real(sqrtm(s @ t))))


def test_the_parts_of_the_distance_are_rows_and_a_sentence(
    damc: Any, copied: Path, tmp_path: Path
) -> None:
    words = ["evaluate", copied, *PIXELS, "--cache", tmp_path / "cache", "--decompose"]
    done = damc(*words, "--real", 300, "--reconstruct", 20, "--no-floor")
    assert done.code == 0, done.err
    found = results(copied)
    kernel = {
        row["of"]: row["value"]
        for row in found["table"]
        if row["measure"] == "pixel-PCA-16 kernel distance"
    }
    added = kernel["damc, amortizer"] - kernel["posterior samples, decoded"]
    assert f"amortizer {added:+.4f}" in found["notes"][0] and found["notes"][0] in done.out


def test_the_table_against_independent_formulas(damc: Any, copied: Path, tmp_path: Path) -> None:
    words = ["evaluate", copied, *PIXELS, "--seed", 3, "--cache", tmp_path / "cache"]
    words += ["--real", 500, "--reconstruct", 50]
    done = damc(*words)
    assert done.code == 0, done.err
    first = results(copied)
    value = {(row["of"], row["measure"]): row["value"] for row in first["table"]}
    learner = library.load(copied)

    train = load_images("digits", split="train")
    features = choose_features("pixel-pca", train)
    real = features(train.batch(torch.arange(500)))
    names = {"amortizer": "damc, amortizer", "gaussian": "damc, N(0, I)"}
    names["energy"] = "damc, 2 Langevin steps"
    for source, name in names.items():
        drawn = features(generate(learner, 100, source=source, seed=3))
        frechet = value[name, "pixel-PCA-16 Frechet distance"]
        assert frechet == pytest.approx(numpy_frechet(drawn, real), rel=1e-3)
        assert "FID" not in name
    unseen = load_images("digits", split="test")
    floor = numpy_frechet(features(unseen.batch(torch.arange(100))), real)
    assert value["unseen images", "pixel-PCA-16 Frechet distance"] == pytest.approx(floor, rel=1e-3)

    x = unseen.batch(torch.arange(50))
    y = learner.reconstruct(x, generator=torch.Generator().manual_seed(3)).clamp(-1, 1)
    error = value["reconstruction, 1 steps", "MSE per pixel"]
    assert error == pytest.approx(float(mse(x, y).mean()), rel=1e-4)
    assert f"{error:.4g}" in done.out and first["reconstruction"]["images"] == 50
    record = first["distances"]["damc, amortizer"][0]
    assert record["split"] == "train, the first 500 images" and record["real_images"] == 500
    assert record["features_hash"] == features.hash

    report = (copied / "report.html").read_text()
    assert "Evaluation" in report and f"damc, amortizer: {record['name']}" in report

    # Again: the real images' statistics are those of the cache, and the numbers the same.
    files = sorted((tmp_path / "cache").iterdir())
    assert len(files) == 2
    times = [file.stat().st_mtime_ns for file in files]
    assert damc(*words).code == 0
    assert [file.stat().st_mtime_ns for file in files] == times
    assert results(copied)["table"] == first["table"]


class Copyist(Learner):
    """Draws training images, dimmed by a factor."""

    name = "copyist"
    inference = "encoder"

    def __init__(self, images: Tensor, factor: float) -> None:
        super().__init__()
        self.images, self.factor = images, nn.Parameter(torch.tensor(factor))

    def draws(self) -> Any:
        def model(n: int, steps: int | None, generator: torch.Generator | None) -> Tensor:
            return self.images[torch.randint(len(self.images), (n,), generator=generator)]

        return {"model": model}

    def decode(self, z: Tensor) -> Tensor:
        return (z + 1) * self.factor.detach() - 1

    def reconstruct(
        self, x: Tensor, *, refine: bool = True, generator: torch.Generator | None = None
    ) -> Tensor:
        return (x + 1) * self.factor.detach() - 1


def test_a_perfect_sampler_is_better_than_a_dim_one(tmp_path: Path) -> None:
    train, unseen = (load_images("digits", split=name) for name in ("train", "test"))
    features = choose_features("pixel-pca", train)
    found = {}
    for factor in (1.0, 0.9):
        learner = Copyist(train.batch(torch.arange(len(train))), factor)
        done = evaluate(learner, train, unseen, features, cache=tmp_path, n=300)
        frechet, kernel = done.distances["copyist"]
        assert kernel.error is not None and frechet.value > 0
        found[factor] = kernel.value / kernel.error
        x = unseen.batch(torch.arange(len(unseen)))
        error = float(((x + 1) * (1 - factor)).square().mean())
        assert done.table[-3].value == pytest.approx(error, rel=1e-4, abs=1e-9)
    assert abs(found[1.0]) < 3 and found[0.9] > 5


def test_what_cannot_be_evaluated(damc: Any, trained: Any, copied: Path, tmp_path: Path) -> None:
    words = ["evaluate", copied, "--cache", tmp_path / "cache"]
    home = {"HOME": str(tmp_path), "DAMC_INCEPTION": ""}
    refused(damc("evaluate", tmp_path / "none"), "no folder")
    inception = ["--features", "inception"]
    refused(
        damc(*words, *inception, env=home), "no Inception network", "DAMC_INCEPTION", "pixel-pca"
    )
    (tmp_path / "net.pt").write_bytes(b"another network")
    refused(damc(*words, "--inception", tmp_path / "net.pt"), "SHA-256")
    refused(
        damc(*words, *PIXELS, "--inception", tmp_path / "net.pt"),
        "must be inception where its file is given",
    )
    refused(damc(*words, "--features", "pixel-pca", "--n", 2), "at least 3")
    refused(damc(*words, *PIXELS, "--reconstruct", 0), "at least 1")
    assert not (copied / "evaluate").exists()
    short = {"posterior_steps": 2, "prior_steps": 2, "updates": 1, "start_steps": 2}
    learner = library.DAMC.from_preset("digits-small", **short)
    own = tmp_path / "python"
    library.fit(learner, "digits", iterations=1, run=own, batch=8, progress=False)
    refused(damc("evaluate", own, *PIXELS), "trained from Python")


def test_without_the_inception_file_features_that_ship_are_used(
    damc: Any, copied: Path, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "DAMC_INCEPTION": ""}
    words = ["evaluate", copied, "--cache", tmp_path / "cache", "--n", 70, "--real", 100]
    done = damc(*words, "--reconstruct", 5, env=home)
    assert done.code == 0, done.err
    assert "no Inception network" in done.out and "they are no FID" in done.out
    assert "pixel-PCA" in done.out and (copied / "evaluate" / "results.json").is_file()


def test_data_without_a_test_split_needs_unseen_images(
    damc: Any, trained: Any, tmp_path: Path
) -> None:
    x = load_images("digits").batch(torch.arange(60)).numpy()
    np.save(tmp_path / "train.npy", x[:40])
    np.save(tmp_path / "test.npy", x[40:])
    words = ["train", "digits-small", "--iterations", 1, "--data", "train.npy", *trained.tiny]
    assert damc(*words, "--test-fraction", 0, "--run", "run", cwd=tmp_path).code == 0
    words = ["evaluate", "run", *PIXELS, "--cache", "cache"]
    refused(damc(*words, cwd=tmp_path), "no split 'test'", "--unseen")
    done = damc(*words, "--unseen", "test.npy", cwd=tmp_path)
    assert done.code == 0, done.err
    found = results(tmp_path / "run")
    assert found["evaluated_on"] == "the images given" and found["reconstruction"]["images"] == 20
    assert "too few" in found["notes"][0] and "too few" in done.out


def test_a_report_shows_measurements_of_its_own_weights_only(tmp_path: Path) -> None:
    keep(tmp_path / "a", 30, Section("New", settings={"k": "v"}))
    keep(tmp_path / "b" / "c", 20, Section("Old"))
    assert kept(tmp_path, 30) == [Section("New", settings={"k": "v"})]
    (tmp_path / "a" / "section.json").write_text('{"iteration": 30')
    with pytest.raises(BadInput, match="damaged: remove it, or measure again"):
        kept(tmp_path, 30)


@pytest.mark.skipif("DAMC_INCEPTION" not in os.environ, reason="DAMC_INCEPTION names no file")
def test_the_real_network_gives_fid(damc: Any, copied: Path, tmp_path: Path) -> None:
    words = ["evaluate", copied, "--n", 5, "--real", 5, "--reconstruct", 5]
    done = damc(*words, "--cache", tmp_path)
    assert done.code == 0, done.err
    assert {"FID", "KID"} <= {row["measure"] for row in results(copied)["table"]}
