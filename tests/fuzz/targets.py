"""What is fuzzed: folders that are read whole, and single files that are read one by one."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import damc
from damc.data import load_images
from damc.errors import BadInput
from damc.inversion.checkpoint import read_checkpoint
from damc.learn import find_method
from damc.tasks.trained import Trained
from damc.tasks.training import parse_settings
from damc.train.loop import fit
from damc.train.origin import Origin
from damc.train.run import Run
from tests.fuzz import damage

ROWS = np.random.default_rng(0).normal(size=(40, 5))
CORPUS = Path(__file__).with_name("corpus.json")
HARMS: dict[str, Callable[[Path, random.Random], str]] = {
    "flips": damage.flip,
    "structural": damage.mutate,
    "forged": damage.forge,
}
FINE = {"told", "unchanged"}


def allowed(harm: str, result: str) -> bool:
    """Under a seal that fits, other values may be read; they may not fail in another way."""
    return result in FINE or (harm == "forged" and result == "SILENT")


def digest(value: Any) -> str:
    """Of nested tensors and plain values."""
    found = hashlib.sha256()

    def add(item: Any) -> None:
        if isinstance(item, Tensor):
            found.update(f"{item.dtype}{tuple(item.shape)}".encode())
            found.update(item.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(item, dict):
            for key, inner in item.items():
                found.update(repr(key).encode())
                add(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                add(inner)
        else:
            found.update(repr(item).encode())

    add(value)
    return found.hexdigest()


def make_run(folder: Path) -> Path:
    """A run of a VAE with three checkpoints, as `damc train` leaves it."""
    torch.manual_seed(0)
    learner = find_method("vae").from_preset("digits-small")
    images = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8)
    origin = Origin("digits", (1, 8, 8))
    fit(
        learner,
        images,
        iterations=3,
        run=folder,
        batch=4,
        checkpoint_every=1,
        log_every=1,
        origin=origin.settings,
        preset="digits-small",
        progress=False,
    )
    origin.remember(folder)
    return folder


def read_run(folder: Path) -> str:
    """All that any command reads of a run folder."""
    run = Run.open(folder)
    with run.lock():
        checkpoint = run.load()
    trained = Trained.open(folder)
    return digest(
        [
            run.config,
            list(checkpoint),
            run.metrics(),
            trained.learner.state_dict(),
            trained.origin,
            trained.name,
            trained.seed,
        ]
    )


def make_detector(folder: Path) -> Path:
    """A saved detector of rows."""
    return damc.AnomalyDetector(random_state=0).fit(ROWS).save(folder)


def read_detector(folder: Path) -> str:
    """Scores, threshold and parameters of a saved detector."""
    detector = damc.load(folder)
    assert isinstance(detector, damc.AnomalyDetector)
    if detector.n_features_in_ != ROWS.shape[1]:
        raise BadInput("a forged detector of other rows")
    scores = torch.from_numpy(np.asarray(detector.decision_function(ROWS[:5])))
    return digest([scores, detector.threshold_, detector.get_params(), detector.decision_scores_])


def make_amortizer(folder: Path) -> Path:
    """A saved amortizer; its description for people is read by nobody."""
    torch.manual_seed(0)
    damc.Amortizer(2, capacity=0.1).save(folder / "q")
    (folder / "q.json").unlink()
    return folder


def read_amortizer(folder: Path) -> str:
    """Its weights and settings."""
    q = damc.Amortizer.load(folder / "q")
    return digest([q.state_dict(), q.config])


FOLDERS: dict[str, tuple[Callable[[Path], Path], damage.Read, tuple[str, ...]]] = {
    "run": (make_run, read_run, ("flips", "structural", "forged")),
    "detector": (make_detector, read_detector, ("flips", "structural", "forged")),
    "amortizer": (make_amortizer, read_amortizer, ("flips",)),
}


def make_files(folder: Path) -> list[Path]:
    """One file of each kind that data and weights come in; none of them has a digest."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8)
    folder.mkdir()
    np.save(folder / "x.npy", pixels)
    np.savez_compressed(folder / "x.npz", images=pixels, labels=np.arange(6))
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in pixels.shape)
    (folder / "x-idx3-ubyte").write_bytes(header + pixels.tobytes())
    for suffix in ("png", "jpg", "bmp", "gif", "webp"):
        Image.fromarray(pixels[0]).save(folder / f"x.{suffix}")
    torch.save({"w": torch.ones(5), "b": torch.zeros(2, 3)}, folder / "x.pth")
    return sorted(folder.iterdir())


def read_file(path: Path) -> Any:
    """What is in a file of images or weights; changed values are no fault here, crashes are."""
    if path.suffix == ".pth":
        return sorted(read_checkpoint(path))
    images = load_images(path)
    return [len(images), images.shape, float(images.batch(torch.arange(len(images))).sum())]


def read_words(dice: random.Random) -> None:
    """Settings as they are typed: nonsense is `BadInput`."""
    names = ["sigma", "updates", "decay", "betas", "noise_negatives", "horizon", "clip", "x", ""]
    values = [
        "1",
        "-1",
        "nan",
        "inf",
        "yes",
        "none",
        "",
        "=",
        "1e999",
        "(0, 1)",
        "\x00",
        "9" * 5000,
    ]
    text = f"{dice.choice(names)}{dice.choice(['=', '', '=='])}{dice.choice(values)}"
    try:
        find_method("damc").from_preset("digits-small", **parse_settings([text]))
    except BadInput as error:
        assert "\n" not in str(error) or "\n" in text


def corpus() -> list[dict[str, Any]]:
    """Past failures: which harm, from which seed, to what."""
    return list(json.loads(CORPUS.read_text()))
