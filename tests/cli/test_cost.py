"""`damc cost`: counts, medians and ratios, on a clock that the test turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from damc import DAMC
from damc.data import load_images
from damc.errors import BadInput
from damc.learn.presets import PRESETS, find_preset
from damc.tasks import cost as module
from damc.tasks.cost import Cost, Timing, cost


def test_the_command_counts_and_times(damc: Any, tmp_path: Path) -> None:
    words = ["cost", "digits-small", "--batch", 4, "--train-batch", 4, "--rounds", 2]
    done = damc(*words, "--out", tmp_path)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "results.json").read_text())
    rows = {row["of"]: row for row in found["table"]}
    learner = DAMC.from_preset("digits-small")
    parts = {"decoder": learner.model.decoder, "denoiser": learner.amortizer.denoiser}
    for name, part in parts.items():
        assert rows[name]["parameters"] == sum(p.numel() for p in part.parameters())
    assert (
        rows["denoiser"]["ratio"] == rows["denoiser"]["parameters"] / rows["decoder"]["parameters"]
    )
    assert found["rounds"] == 2 and found["machine"]["threads"] == 1
    iteration = rows["training iteration"]["seconds"]
    assert rows["epoch of 1,438 images"]["seconds"] == pytest.approx(1438 // 4 * iteration)
    seconds = found["seconds_of_each_round"]
    slow, fast = (
        seconds["prior, Langevin of 100 steps"],
        seconds["prior, amortizer of 100 steps"],
    )
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    assert rows["prior, Langevin of 100 steps"]["ratio"] == pytest.approx(sum(ratios) / 2)
    assert "medians of 2 rounds" in done.out and f"{iteration:.4g}" in done.out


class Clock:
    """Time that passes only when a thing runs."""

    def __init__(self) -> None:
        self.now, self.ran = 0.0, ""

    def thing(self, name: str, *seconds: float) -> Any:
        left = list(seconds)

        def run() -> None:
            self.ran += name
            self.now += left.pop(0)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock.now)
    return clock


def test_rounds_alternate_and_the_first_only_warms_up(clock: Clock) -> None:
    things = {"a": clock.thing("a", 9, 1, 2, 3), "b": clock.thing("b", 9, 4, 4, 3)}
    found = module._rounds(things, 3, 1000.0, False)
    assert clock.ran == "abababab"
    assert found["a"].seconds == (1, 2, 3) and found["b"].median == 4
    assert found["b"].ratio(found["a"]) == 2  # of 4, 2 and 1


def test_a_budget_ends_the_rounds_and_one_round_is_enough(clock: Clock) -> None:
    found = module._rounds({"a": clock.thing("a", 5, 5, 5, 5)}, 9, 9.0, False)
    assert found["a"].seconds == (5,) and clock.ran == "aa"
    found = module._rounds({"b": clock.thing("b", 50)}, 9, 9.0, False)
    assert found["b"].seconds == (50,)


def test_an_epoch_is_its_whole_batches() -> None:
    found = Cost({"decoder": 1}, {"training iteration": Timing((2.0, 3.0, 9.0))}, 4, 10, 35, 1.0)
    assert found.epoch == 3 * 3.0
    unknown = Cost({"decoder": 1}, found.timings, 4, 10, None, 1.0)
    assert unknown.epoch is None and [row["of"] for row in unknown.table][-1] != "epoch"


def test_bad_input(damc: Any, tmp_path: Path) -> None:
    for words in ({"batch": 0}, {"train_batch": 0}, {"rounds": 0}, {"images": 0}):
        with pytest.raises(BadInput, match="at least 1"):
            cost(find_preset("digits-small"), **words)
    with pytest.raises(BadInput, match="budget must be 0 seconds or more, got -1"):
        cost(find_preset("digits-small"), budget=-1)
    done = damc("cost", "digit-small", cwd=tmp_path)
    assert done.code == 2 and "did you mean 'digits-small'" in done.err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_an_epoch(name: str) -> None:
    assert module._TRAINING_IMAGES.get(PRESETS[name].data) is not None


@pytest.mark.parametrize("data", ["digits", "mnist-5k"])
def test_embedded_data_are_counted_right(data: str) -> None:
    assert module._TRAINING_IMAGES[data] == len(load_images(data))
