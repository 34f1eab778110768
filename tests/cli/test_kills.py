"""`kill -9` at random moments: the same command goes on and ends as if it had not been."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from damc.data import load_images
from damc.train.run import Run
from tests.cli.conftest import Damc

KILLS = 20

pytestmark = pytest.mark.slow

SMALL = """
import damc.anomaly.detect, damc.learn.presets
damc.learn.presets.DEMO = ("digits", "digits-small", 40)
damc.anomaly.detect._CHUNK = 100
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damc]:
    """The commands with small settings where they have no option for it."""
    command = Damc(tmp_path_factory.mktemp("small"), SMALL)
    yield command
    command.close()


def newest(folder: Path) -> dict[Path, int]:
    """The newest checkpoint of every run below a folder."""
    found: dict[Path, int] = {}
    for path in folder.rglob("checkpoints/" + "[0-9]" * 8):
        run = path.parent.parent
        found[run] = max(found.get(run, 0), int(path.name))
    return found


def killed(damc: Damc, words: list[Any], out: Path, seed: int) -> list[Path]:
    """Folders in which the command was killed again and again and then ended, `KILLS` in all.

    A kill comes at any moment of what an undisturbed command takes; one that is done by then begins
    another folder.
    """
    dice = random.Random(seed)
    begun = time.monotonic()
    assert damc(*words, out / "first").code == 0
    whole = time.monotonic() - begun
    ended = [out / "first"]
    kills, late, folder = 0, 0, out / "1"
    while kills < KILLS:
        before = newest(folder)
        started = damc.start(*words, folder)
        time.sleep(dice.uniform(0, whole))
        started.signal(signal.SIGKILL)
        done = started.wait()
        if done.code == 0:  # it was quicker
            late += 1
            ended.append(folder)
            folder = out / str(len(ended))
            continue
        assert done.code == -signal.SIGKILL, done.err
        kills += 1
        after = newest(folder)
        assert all(after.get(run, 0) >= k for run, k in before.items())
    done = damc(*words, folder)
    assert done.code == 0, done.err
    print(f"{words[0]}: {kills} killed, {late} ended before, {len(ended) + 1} folders")
    return [*ended, folder]


def same_weights(folders: list[Path]) -> None:
    first, *others = (Run.open(folder).load() for folder in folders)
    for other in others:
        assert other.iteration == first.iteration
        assert all(other.weights[name].equal(first.weights[name]) for name in first.weights)


def figures(folder: Path, key: str | None = None) -> Any:
    found = json.loads((folder / "results.json").read_text())
    return found if key is None else found[key]


def test_demo(small: Damc, tmp_path: Path) -> None:
    folders = killed(small, ["demo", "--out"], tmp_path, 0)
    same_weights(folders)
    assert all((folder / "overview.png").stat().st_size > 500 for folder in folders)


def test_train_gan(small: Damc, tmp_path: Path) -> None:
    words = ["train-gan", "digits", "--size", 8, "--width", 4, "--widest", 8, "--style", 4]
    words += ["--batch", 8, "--pictures-every", 20, "--samples", 20, "--iterations", 40]
    folders = killed(small, [*words, "--checkpoint-every", 3, "--run"], tmp_path, 1)
    same_weights(folders)
    assert len({figures(f, "pixel_pca_distance_samples") for f in folders}) == 1


def test_reproduce(small: Damc, tmp_path: Path) -> None:
    words = ["reproduce", "steps", "--data", "digits", "--methods", "T=10", "T=30"]
    words += ["--threads", 1, "--iterations", 20, "--images", 60, "--out"]
    folders = killed(small, words, tmp_path, 2)
    tables = [
        [{k: v for k, v in cell["figures"].items() if "seconds" not in k} for cell in cells]
        for cells in (figures(folder, "cells") for folder in folders)
    ]
    assert all(found == tables[0] for found in tables)


def test_detect(small: Damc, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert small("train", "digits-small", "--iterations", 20, "--run", run).code == 0
    x = load_images("digits").batch(torch.arange(1000))
    np.save(tmp_path / "x.npy", ((x + 1) * 127.5).round().numpy().astype(np.uint8)[:, 0])
    folders = killed(small, ["detect", run, tmp_path / "x.npy", "--out"], tmp_path, 3)
    scores = {(folder / "scores.csv").read_bytes() for folder in folders}
    assert len(scores) == 1
    assert not any((folder / "scores.partial").exists() for folder in folders)
