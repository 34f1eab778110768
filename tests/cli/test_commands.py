"""What each command does when all goes well."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import damc as library
from damc import DAMC
from damc.cli import COMMANDS
from damc.data import heldout_split, load_images
from damc.learn.presets import PRESETS
from damc.metrics.images import mse
from damc.train.run import Run

SCRIPT = Path(sys.executable).with_name("damc")


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 500


def test_the_installed_command_gives_an_overview() -> None:
    done = subprocess.run([SCRIPT], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        assert f"damc {name}" in done.stdout


def test_python_dash_m_is_the_same_command() -> None:
    words = [sys.executable, "-m", "damc", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"damc {library.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(damc: Any, name: str) -> None:
    done = damc(name, "--help", env={"COLUMNS": "80"})
    assert done.code == 0 and done.err == ""
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80 and all(line == line.rstrip() for line in lines)
    assert "\n\n\n" not in done.out and "(default: False)" not in done.out
    assert f"usage: damc {name}" in done.out
    assert "(default: None)" not in done.out or name == "toy"


def test_help_is_wrapped_by_the_terminal_and_not_by_the_source(damc: Any) -> None:
    told = damc("train", "--help", env={"COLUMNS": "100"}).out
    start = told.index("[PRESET]        The preset to train;")
    first, second = told[start:].splitlines()[:2]
    assert len(first) + len(second.split()[0]) > 96  # the next word did not fit


def test_train_leaves_a_whole_run_folder(trained: Any) -> None:
    run = Run.open(trained.folder)
    assert run.checkpoints() == [10, 20, 30]
    assert run.config["preset"] == "digits-small"
    assert run.config["config"]["settings"]["posterior_steps"] == 2
    assert [record["iteration"] for record in run.metrics()] == [10, 20, 30]
    pictures = list((trained.folder / "pictures").iterdir())
    assert len(pictures) == 5 and all(map(is_png, pictures))
    report = (trained.folder / "report.html").read_text()
    assert report.count("data:image/png;base64,") == 5
    assert "posterior_steps" in report and 'src="http' not in report


def test_train_prints_what_it_wrote(trained: Any) -> None:
    table = results(trained.folder)
    assert table["evaluated_on"] == "test images" and table["images"] == 359
    assert f"{table['mse']:.4g}" in trained.outcome.out
    for name in re.findall(r"trained/\S+", trained.outcome.out):
        assert (trained.folder.parent / name).exists(), name


def test_training_again_with_nothing_to_do_changes_no_weight(damc: Any, trained: Any) -> None:
    before = Run.open(trained.folder).load().weights
    assert damc(*trained.words, "--run", trained.folder).code == 0
    after = Run.open(trained.folder).load().weights
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_one_seed_is_one_set_of_samples(damc: Any, trained: Any, tmp_path: Path) -> None:
    def draw(name: str, *words: object) -> np.ndarray[Any, Any]:
        done = damc("sample", trained.folder, "--n", 5, "--out", tmp_path / name, *words)
        assert done.code == 0, done.err
        array: np.ndarray[Any, Any] = np.load(tmp_path / name / "samples.npy", allow_pickle=False)
        assert array.shape == (5, 1, 8, 8) and np.abs(array).max() <= 1
        return array

    first = draw("a", "--seed", 1)
    assert np.array_equal(first, draw("b", "--seed", 1))
    assert not np.array_equal(first, draw("c", "--seed", 2))
    noise = draw("d", "--source", "gaussian")
    # No move at all leaves the chains of the energy where they start, at the same noise.
    assert np.array_equal(noise, draw("e", "--source", "energy", "--steps", 0))
    assert not np.array_equal(noise, draw("f", "--source", "energy", "--steps", 20))
    assert is_png(tmp_path / "f" / "energy.png")


def test_reconstruct_measures_the_test_images(damc: Any, trained: Any, tmp_path: Path) -> None:
    done = damc("reconstruct", trained.folder, "--n", 40, "--out", tmp_path)
    assert done.code == 0, done.err
    table = results(tmp_path)
    x = load_images("digits", split="test").batch(torch.arange(40))
    y = library.load(trained.folder).reconstruct(x, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(torch.tensor(table["mse_of_each"]), mse(x, y.clamp(-1, 1)), atol=1e-6)
    assert table["mse"] == pytest.approx(np.mean(table["mse_of_each"]), rel=1e-5)
    assert table["mean_image_mse"] == pytest.approx(float(mse(x, x.mean(0).expand_as(x)).mean()))
    assert f"{table['mse']:.4g}" in done.out and is_png(tmp_path / "reconstructions.png")


def test_reconstruct_takes_images_of_ones_own(damc: Any, trained: Any, tmp_path: Path) -> None:
    from PIL import Image

    x = load_images("digits", split="test").batch(torch.arange(3))
    np.save(tmp_path / "x.npy", x.numpy())
    Image.fromarray(np.full((20, 30, 3), 200, dtype=np.uint8)).save(tmp_path / "big.png")
    words = ["reconstruct", trained.folder, "--out", tmp_path / "out"]
    assert damc(*words, tmp_path / "x.npy").code == 0
    assert results(tmp_path / "out")["images"] == 3
    refused = damc(*words, tmp_path / "big.png")
    assert refused.code == 2 and "3x20x30" in refused.err and "--resize" in refused.err
    assert damc(*words, tmp_path / "x.npy", tmp_path / "big.png", "--resize").code == 0
    assert results(tmp_path / "out")["images"] == 4


def test_report_is_made_again(damc: Any, copied: Path) -> None:
    (copied / "report.html").unlink()
    (copied / "results.json").unlink()
    assert damc("report", copied).code == 0
    assert (copied / "report.html").read_text().count("data:image/png;base64,") == 5
    assert results(copied)["iteration"] == 30


def test_a_class_is_held_out(damc: Any, trained: Any, tmp_path: Path) -> None:
    words = ["train", "digits-small", "--iterations", 1, "--heldout", 4, *trained.tiny]
    assert damc(*words, "--run", tmp_path / "run").code == 0
    everything = load_images("digits", split="all")
    data = Run.open(tmp_path / "run").config["data"]
    assert data["heldout"] == 4
    assert data["count"] == len(heldout_split(everything, 4, train=True))
    unseen = heldout_split(everything, 4, train=False)
    assert unseen.labels is not None
    assert results(tmp_path / "run")["images"] == int((unseen.labels != 4).sum())
    other = damc(*words[:5], 5, *trained.tiny, "--run", tmp_path / "run")
    assert other.code == 2 and "heldout differs" in other.err


def test_images_without_a_test_split_are_evaluated_on_those_held_out(
    damc: Any, trained: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", load_images("digits").batch(torch.arange(20)).numpy())
    words = ["train", "digits-small", "--iterations", 1, "--data", "x.npy", *trained.tiny]
    assert damc(*words, "--run", "run", cwd=tmp_path).code == 0
    table = results(tmp_path / "run")
    assert table["evaluated_on"] == "held-out images" and table["images"] == 2
    # The run knows where its images were, from any working folder.
    assert damc("reconstruct", tmp_path / "run", cwd=trained.folder).code == 0


def test_presets_counts_the_networks_that_are_built(damc: Any, tmp_path: Path) -> None:
    assert damc("presets", "--out", tmp_path).code == 0
    rows = {row["preset"]: row for row in results(tmp_path)["presets"]}
    assert list(rows) == list(PRESETS)
    learner = DAMC.from_preset("digits-small")
    count = {"decoder": learner.model.decoder, "denoiser": learner.amortizer.denoiser}
    for name, module in count.items():
        assert rows["digits-small"][name] == sum(p.numel() for p in module.parameters())


def test_data_says_what_is_found(damc: Any, tmp_path: Path) -> None:
    done = damc("data", "--data-root", tmp_path, "--out", tmp_path)
    assert done.code == 0
    rows = {row["name"]: row for row in results(tmp_path)["data"]}
    assert rows["digits"]["counts"] == {"train": 1438, "test": 359}
    assert not rows["mnist"]["found"] and str(tmp_path) in rows["mnist"]["path"]
    for words in ("damc download mnist", "damc download cifar10", "mmlab.ie.cuhk.edu.hk"):
        assert words in done.out
    assert "How to get the others" in done.out and "https://github.com/NVlabs" in done.out


def test_help_and_version_are_words_too(damc: Any) -> None:
    assert damc("version").out == f"damc {library.__version__}\n"
    helped = damc("help", "train")
    assert helped.code == 0 and helped.out == damc("train", "--help").out
    assert "usage: damc train" in helped.out
    assert damc("help").out == damc().out
    wrong = damc("help", "trian")
    assert wrong.code == 2 and "did you mean 'train'" in wrong.err


def test_download_refuses_what_is_not_the_published_file(damc: Any, tmp_path: Path) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"not MNIST")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        mirror = f"http://127.0.0.1:{server.server_address[1]}"
        done = damc("download", "mnist", "--data-root", tmp_path, "--mirror", mirror)
        server.shutdown()
        thread.join()
    assert done.code == 2 and "must have 9912422 bytes and the MD5 f68b3c2d" in done.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert damc("download", "celeba64").code == 2


def test_two_processes_make_the_same_kind_of_run_folder(trained: Any, tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "damc", "--", *map(str, trained.words), "--run", "run"]
    words += ["--checkpoint-every", "10"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

    def names(folder: Path) -> set[str]:
        chosen = (path.relative_to(folder) for path in folder.rglob("*"))
        return {str(path) for path in chosen if path.parts[0] in ("checkpoints", "pictures")}

    assert names(tmp_path / "run") == names(trained.folder)
    one, two = Run.open(trained.folder), Run.open(tmp_path / "run")
    assert one.config == two.config
    a, b = one.load().weights, two.load().weights
    assert {n: t.shape for n, t in a.items()} == {n: t.shape for n, t in b.items()}
    # Each process drew its own noise, so two processes are no copy of one.
    assert not all(torch.equal(a[name], b[name]) for name in a)
    assert done.stdout.count("MSE per pixel") == 1


def test_stages_and_rates_follow_the_iterations_asked_for(damc: Any, tmp_path: Path) -> None:
    words = ["train", "digits-small", "--method", "vae-2stage", "--run", tmp_path]
    assert damc(*words, "--iterations", 6).code == 0
    settings = Run.open(tmp_path).config["config"]["settings"]
    assert settings["horizon"] == 6
    assert results(tmp_path)["iteration"] == 6
    assert library.load(tmp_path).sources == ("second", "gaussian")
    assert damc(*words, "--iterations", 8).code == 0  # goes on, by the schedule that it began with
    assert Run.open(tmp_path).config["config"]["settings"] == settings
    refused = damc("reconstruct", tmp_path, "--steps", 5)
    assert refused.code == 2 and "without posterior moves" in refused.err
