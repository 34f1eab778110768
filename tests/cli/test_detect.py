"""`damc detect`: a CSV, a picture and a table; bad input is one sentence."""

from __future__ import annotations

import csv
import io
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from damc import AnomalyDetector
from damc.anomaly.detect import detect, names_of
from damc.data import load_images
from damc.train.origin import Origin


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six test digits, and one picture of noise, as files."""
    folder = tmp_path_factory.mktemp("pictures")
    x = load_images("digits", split="test").batch(torch.arange(6))
    pixels = ((x[:, 0] + 1) * 127.5).round().to(torch.uint8).numpy()
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"digit{i}.png")
    noise = np.random.default_rng(0).integers(0, 2, (8, 8)).astype(np.uint8) * 255
    Image.fromarray(noise).save(folder / "noise.png")
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_detect_writes_scores_and_a_picture(
    damc: Any, trained: Any, pictures: Path, tmp_path: Path
) -> None:
    words = ["detect", trained.folder, pictures, "--out", tmp_path, "--n", 2, "--samples", 1]
    done = damc(*words)
    assert done.code == 0 and "Traceback" not in done.err, done.err
    rows = table(tmp_path / "scores.csv")
    assert [Path(row["image"]).name for row in rows] == sorted(p.name for p in pictures.iterdir())
    scores = {Path(row["image"]).name: float(row["score"]) for row in rows}
    assert max(scores, key=scores.__getitem__) == "noise.png"
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["images"] == 7
    assert results["normal_images"] == 179  # the other 180 test digits calibrate the score
    above = [name for name, score in scores.items() if score > results["threshold"]]
    assert [int(row["anomalous"]) for row in rows] == [int(name in above) for name in scores]
    assert results["anomalies"] == len(above)
    assert Path(results["most_anomalous"][0]).name == "noise.png" and "noise.png" in done.out
    with Image.open(tmp_path / "ends.png") as picture:
        assert picture.height > 4 * 80 and picture.width > 2 * 80
    # The command is the class: the same scores, and again the same.
    detector = AnomalyDetector.from_run(trained.folder, samples=1)
    x = load_images(pictures)
    assert np.allclose(detector.decision_function(x), list(scores.values()), rtol=1e-4)
    assert detector.threshold_ == pytest.approx(results["threshold"], rel=1e-5)


def test_detect_takes_normal_images_and_a_quantile(
    damc: Any, trained: Any, pictures: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "normal.npy", load_images("digits").batch(torch.arange(40)).numpy())
    words = ["detect", trained.folder, tmp_path / "normal.npy", pictures / "noise.png"]
    words += ["--normal", tmp_path / "normal.npy", "--quantile", 0.5, "--samples", 1]
    done = damc(*words, "--out", tmp_path)
    assert done.code == 0, done.err
    rows = table(tmp_path / "scores.csv")
    assert rows[3]["image"].endswith("normal.npy[3]") and rows[-1]["image"].endswith("noise.png")
    # The threshold is the median of the second half; the first calibrates.
    assert sum(int(row["anomalous"]) for row in rows[20:40]) in (9, 10)


def test_detect_on_a_saved_detector(damc: Any, pictures: Path, tmp_path: Path) -> None:
    x = ((load_images("digits").batch(torch.arange(30))[:, 0] + 1) * 127.5).round()
    detector = AnomalyDetector(iterations=1, samples=1, random_state=0)
    detector.fit(x.to(torch.uint8)).save(tmp_path / "run")
    done = damc("detect", tmp_path / "run", pictures / "noise.png")
    assert done.code == 0, done.err
    rows = table(tmp_path / "run" / "detect" / "scores.csv")
    noise = np.asarray(Image.open(pictures / "noise.png"))
    assert float(rows[0]["score"]) == pytest.approx(
        float(detector.decision_function(noise[None])[0]), rel=1e-4
    )


def test_a_detector_without_a_network_is_used_alike_and_twice(
    damc: Any, pictures: Path, tmp_path: Path
) -> None:
    x = ((load_images("digits").batch(torch.arange(300))[:, 0] + 1) * 127.5).round()
    AnomalyDetector(random_state=0).fit(x.to(torch.uint8)).save(tmp_path / "run")
    for name in ("detect", "detect-2"):
        done = damc("detect", tmp_path / "run", pictures, "--n", 3)
        assert done.code == 0, done.err
        out = tmp_path / "run" / name
        found = {Path(row["image"]).name: row for row in table(out / "scores.csv")}
        assert found["noise.png"]["anomalous"] == "1"
        assert float(found["noise.png"]["p_value"]) == pytest.approx(1 / 301, rel=1e-3)
        assert json.loads((out / "results.json").read_text())["score"] == ["pixels", "gradients"]
        page = (out / "report.html").read_text()
        assert page.count("data:image/png") == 2 and "noise.png" in page
        with Image.open(out / "maps.png") as picture:
            assert picture.height > 2 * 80 and picture.width > 3 * 80
    one = damc("detect", tmp_path / "run", pictures, "--score", "gradients", "--out", tmp_path)
    assert one.code == 2 and "give normal images" in one.err
    AnomalyDetector().fit(np.random.default_rng(0).normal(size=(30, 3))).save(tmp_path / "rows")
    drawn = damc("detect", tmp_path / "run", pictures, "--samples", 3)
    assert drawn.code == 2 and "samples must be left out" in drawn.err and "got 3" in drawn.err
    refused = damc("detect", tmp_path / "rows", pictures)
    assert refused.code == 2 and "detector of vectors" in refused.err


def test_bad_input_is_one_sentence(
    damc: Any, trained: Any, copied: Path, pictures: Path, tmp_path: Path
) -> None:
    def refused(*words: object, said: str) -> None:
        out = tmp_path / "out"
        done = damc("detect", *words, "--out", out)
        assert done.code == 2 and "Traceback" not in done.err, done
        last = done.err.strip().splitlines()[-1]
        assert last.startswith("damc: ") and said in last, last
        assert not out.exists()

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.png").write_bytes((pictures / "noise.png").read_bytes()[:40])
    np.save(tmp_path / "wide.npy", np.zeros((2, 8, 9), np.uint8))
    np.save(tmp_path / "nan.npy", np.full((2, 8, 8), np.nan))
    (tmp_path / "none").mkdir()
    refused(trained.folder, broken, said="a.png")
    refused(trained.folder, tmp_path / "wide.npy", said="1x8x9")
    refused(trained.folder, tmp_path / "nan.npy", said="NaN")
    refused(trained.folder, tmp_path / "none", said="contains no pictures")
    refused(trained.folder, tmp_path / "missing.png", said="does not exist")
    refused(trained.folder, pictures, "--quantile", 2, said="between 0 and 1")
    refused(trained.folder, pictures, "--samples", 0, said="samples")
    refused(trained.folder, pictures, "--n", 0, said="at least 1")
    refused(tmp_path / "none", pictures, said="not a run folder")
    (copied / "detector.json").write_text("{")
    refused(copied, pictures, said="detector.json is damaged")
    (copied / "detector.json").unlink()
    for file in copied.rglob("weights.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    refused(copied, pictures, said="only damaged checkpoints")


def test_a_method_without_reconstructions_is_scored_by_its_own_score(
    damc: Any, tmp_path: Path
) -> None:
    words = ["train", "digits-small", "--method", "meg", "--iterations", 2, "--run", tmp_path / "m"]
    assert damc(*words).code == 0
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8))
    done = damc("detect", tmp_path / "m", tmp_path / "x.npy", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "ends.png").stat().st_size > 500
    refused = damc("detect", tmp_path / "m", tmp_path / "x.npy", "--score", "joint")
    assert refused.code == 2 and "no joint score" in refused.err


def test_a_detector_is_fitted_saved_and_used_from_the_shell(
    damc: Any, pictures: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "normal"
    folder.mkdir()
    x = ((load_images("digits").batch(torch.arange(60))[:, 0] + 1) * 127.5).round()
    for i, image in enumerate(x.to(torch.uint8).numpy()):
        Image.fromarray(image).save(folder / f"{i}.png")
    out = tmp_path / "detector"
    done = damc("train-detector", folder, "--out", out, "--contamination", 0.05)
    assert done.code == 0 and "damc detect" in done.out, done.err
    results = json.loads((out / "results.json").read_text())
    assert results["images"] == 60 and results["parts"][:2] == ["pixels", "gradients"]
    again = AnomalyDetector(contamination=0.05, random_state=0).fit(str(folder))
    assert again.threshold_ == pytest.approx(results["threshold"], rel=1e-5)
    done = damc("detect", out, pictures)
    assert done.code == 0, done.err
    rows = {Path(row["image"]).name: row for row in table(out / "detect" / "scores.csv")}
    assert rows["noise.png"]["anomalous"] == "1"
    assert not (out / "detect" / "scores.partial").exists()
    done = damc("train-detector", folder, "--out", out)
    assert done.code == 2 and "out must be a new folder" in done.err


def test_detection_goes_on_where_it_was_stopped(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after some images: no image is scored twice, and the scores are those of one go."""
    monkeypatch.setattr("damc.anomaly.detect._CHUNK", 8)
    x = load_images("digits")
    detector = AnomalyDetector(random_state=0).fit(x.subset(slice(60)))
    sets = [x.subset(slice(60, 80)), x.subset(slice(80, 93))]
    names = [str(i) for i in range(33)]
    whole = detect(detector, sets, names)
    score, seen = AnomalyDetector.decision_function, []

    def stopped(self: AnomalyDetector, images: Any) -> Any:
        if sum(seen) >= 16:
            raise KeyboardInterrupt
        seen.append(len(images))
        return score(self, images)

    partial = tmp_path / "scores.partial"
    monkeypatch.setattr(AnomalyDetector, "decision_function", stopped)
    with pytest.raises(KeyboardInterrupt):
        detect(detector, sets, names, partial)
    with partial.open("ab") as file:
        file.write(b"xy")  # half a number, cut off
    monkeypatch.setattr(
        AnomalyDetector,
        "decision_function",
        lambda self, images: seen.append(len(images)) or score(self, images),
    )
    found = detect(detector, sets, names, partial)
    assert sum(seen) == 33 and partial.exists()  # until the caller has written the scores
    assert np.allclose(found.scores, whole.scores, atol=1e-5)
    # Other images, or another detector, begin anew.
    partial.write_bytes(b"of others\n" + bytes(40))
    seen.clear()
    detect(detector, sets, names, partial)
    assert sum(seen) == 33


def test_memory_does_not_grow_with_the_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture leaves some numbers behind: none of its 2,304 pixels, neither path nor name."""
    monkeypatch.setattr("damc.anomaly.detect._CHUNK", 64)
    blob = io.BytesIO()
    Image.fromarray(np.full((48, 48), 7, np.uint8)).save(blob, "bmp")
    for n in (10, 400, 1600):
        (tmp_path / f"{n}").mkdir()
        for i in range(n):
            (tmp_path / f"{n}" / f"{i:04d}.bmp").write_bytes(blob.getvalue())

    class Mean(AnomalyDetector):
        normal_scores_, threshold_, seed_ = np.arange(10.0), 8.0, 0

        def decision_function(self, X: Any) -> Any:
            return X.batch(torch.arange(len(X))).mean((1, 2, 3)).numpy()

        def probabilities(self, scores: Any) -> Any:
            return np.stack([scores, scores], 1)

    def peak(n: int) -> int:
        folder = (tmp_path / f"{n}",)
        tracemalloc.start()
        sets = Origin("", (1, 48, 48)).load(folder, keep=False)
        found = detect(Mean(), sets, names_of(folder, sets), tmp_path / "partial")
        found.write_csv(tmp_path / "scores.csv")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(found.names) == n and found.names[-1].endswith(f"{n - 1:04d}.bmp")
        return most

    peak(10)  # what is made once
    few, many = peak(400), peak(1600)
    assert many - few < 200 * (1600 - 400), (few, many)


def test_names_that_are_no_text_are_scored(
    damc: Any, trained: Any, pictures: Path, tmp_path: Path
) -> None:
    """A file name may be any bytes: the table has them as they are, the terminal an escape."""
    odd = tmp_path / os.fsdecode(b"caf\xe9.png")
    odd.write_bytes((pictures / "noise.png").read_bytes())
    done = damc("detect", trained.folder, odd, "--samples", 1, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert b"caf\xe9.png" in (tmp_path / "out" / "scores.csv").read_bytes()
