"""Loggers get metrics and pictures; those on board write what others can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from damc import DAMC, BadInput, fit
from damc.train.loggers import JSONLines, TensorBoard, grid


class Notes:
    """The two methods that make a logger."""

    def __init__(self) -> None:
        self.values: list[tuple[int, Mapping[str, float]]] = []
        self.images: list[tuple[int, str, Tensor]] = []

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.values.append((step, dict(values)))

    def log_image(self, name: str, image: Tensor, step: int) -> None:
        self.images.append((step, name, image))


def train(*loggers: Any, **options: Any) -> DAMC:
    torch.manual_seed(0)
    learner = DAMC.from_preset(
        "digits-small", posterior_steps=2, prior_steps=2, updates=1, start_steps=2
    )
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return fit(
        learner, x, iterations=4, batch=8, log_every=2, hook_every=3, loggers=loggers,
        progress=False, **options,
    )  # fmt: skip


def test_a_logger_gets_metrics_and_samples() -> None:
    notes = Notes()
    learner = train(notes)
    assert [step for step, _ in notes.values] == [2, 4]
    assert notes.values[1][1]["mse"] == learner.history.values("mse")[1]
    assert [(step, name) for step, name, _ in notes.images] == [(3, "samples"), (4, "samples")]
    assert notes.images[0][2].shape == (1, 32, 32)
    plain = train()  # looking changes nothing
    for name, weights in plain.state_dict().items():
        assert torch.equal(weights, learner.state_dict()[name]), name


def test_json_lines_can_be_read_back(tmp_path: Path) -> None:
    learner = train(JSONLines(tmp_path / "log"))
    lines = [json.loads(line) for line in (tmp_path / "log" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert [line["mse"] for line in lines] == learner.history.values("mse")
    assert Image.open(tmp_path / "log" / "samples_00000004.png").size == (32, 32)


def test_a_png_has_the_pixels_of_the_image(tmp_path: Path) -> None:
    image = torch.tensor([-1.0, 0.0, 1.0, 2.0]).view(1, 2, 2).expand(3, 2, 2)
    JSONLines(tmp_path).log_image("a b", image, 7)
    assert np.asarray(Image.open(tmp_path / "a_b_00000007.png"))[..., 0].tolist() == [
        [0, 128],
        [255, 255],
    ]
    JSONLines(tmp_path).log({"loss": float("inf")}, 1)
    assert json.loads((tmp_path / "log.jsonl").read_text())["loss"] is None
    with pytest.raises(BadInput, match=r"image must have shape \(1 or 3, H, W\)"):
        JSONLines(tmp_path).log_image("a", torch.zeros(2, 4, 4), 1)


def test_the_grid_keeps_the_order() -> None:
    x = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 1, 2, 3) / 10
    sheet = grid(x, columns=2)
    assert sheet.shape == (1, 6, 6)
    assert sheet[0, ::2, ::3].tolist() == [
        [pytest.approx(0.0), pytest.approx(0.1)],
        [pytest.approx(0.2), pytest.approx(0.3)],
        [pytest.approx(0.4), 1.0],
    ]


def test_tensorboard_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: damc[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    learner = train(run=tmp_path, tensorboard=True)
    events = EventAccumulator(str(tmp_path)).Reload()
    scalars = events.Scalars("mse")
    assert [event.step for event in scalars] == [2, 4]
    assert [event.value for event in scalars] == pytest.approx(learner.history.values("mse"))
    assert [event.step for event in events.Images("samples")] == [3, 4]


def test_tensorboard_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match=r"pip install 'damc\[tensorboard\]'"):
        TensorBoard(tmp_path)
