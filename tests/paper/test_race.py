"""The race: one run, measured along the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from damc.errors import BadInput
from damc.paper import race, training
from damc.paper.race import Race, moments
from damc.paper.show import show
from damc.paper.table import Options
from damc.paper.work import run_cells
from damc.train.run import Run


def test_moments_double() -> None:
    assert moments(8) == (1.0, 2.0, 4.0, 8.0)
    assert moments(0.5) == (0.5,)
    assert moments(5) == (1.0, 2.0, 4.0, 5.0)
    with pytest.raises(BadInput, match="at most 64"):
        moments(100)


def test_each_moment_is_measured_once_along_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_worth", lambda *_: (1.0, 6.0))  # 40 iterations in 4 minutes
    seen: list[int] = []

    def figures(self: object, learner: object, seed: int) -> dict[str, float]:
        seen.append(learner.iteration)  # type: ignore[attr-defined]
        return {"kernel": 1.0 / len(seen), "mse": 0.5}

    monkeypatch.setattr(race.Quality, "of", figures)
    options = Options(methods=("vae",), data=("digits",), minutes=4.0, images=50)
    results = run_cells(Race(), options, tmp_path)
    assert seen == [10, 20, 40]
    found = results[0].figures
    assert [found[f"kernel@{m}"] for m in (1, 2, 4)] == [1, 1 / 2, 1 / 3]
    assert found["kernel"] == found["kernel@4"] and found["iterations"] == 40
    folder = tmp_path / "cells" / results[0].cell.name
    assert Run.open(folder / "run").metrics()[-1]["iteration"] == 40

    # Interrupted after the second moment, it measures the third alone.
    kept = json.loads((folder / "moments.json").read_text())
    left = {k: v for k, v in kept.items() if k.endswith(("@1", "@2"))}
    (folder / "moments.json").write_text(json.dumps(left))
    (folder / "result.json").unlink()
    again = run_cells(Race(), options, tmp_path)
    assert seen == [10, 20, 40, 40]
    _, files = show(Race(), again, tmp_path, "damc reproduce race", "")
    assert files[-1].name == "chart.png" and files[-1].stat().st_size > 5000
