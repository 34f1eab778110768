"""`damc reproduce` and `damc methods`, driven as a user does."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Until = Callable[[Callable[[], bool]], None]

TABLE = ["reproduce", "steps", "--data", "digits", "--methods", "T=10", "T=30", "--threads", 1]


def figures(out: Path) -> list[tuple[str, dict[str, float]]]:
    cells = json.loads((out / "results.json").read_text())["cells"]
    return [
        (cell["row"], {k: v for k, v in cell["figures"].items() if "seconds" not in k})
        for cell in cells
    ]


def test_an_interrupted_table_goes_on_and_ends_the_same(
    damc: Any, tmp_path: Path, until: Until
) -> None:
    words = [*TABLE, "--iterations", 20, "--images", 60]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    done = damc(*words, "--out", whole, "--processes", 2)
    assert done.code == 0, done.err
    for name in ("table.md", "table.csv", "chart.png", "results.json"):
        assert (whole / name).stat().st_size > 0
    assert "T=30" in done.out and "test MSE" in done.out

    started = damc.start(*words, "--out", broken)
    first = broken / "cells" / "digits--T=10--seed-0"
    second = broken / "cells" / "digits--T=30--seed-0" / "run" / "metrics.jsonl"
    until(lambda: second.exists() and second.stat().st_size > 0)  # in the middle of its training
    started.signal(signal.SIGINT)
    stopped = started.wait()
    assert stopped.code == 130 and "the same command resumes it" in stopped.err
    assert not (broken / "results.json").exists()
    before = (first / "result.json").read_bytes()
    again = damc(*words, "--out", broken)
    assert again.code == 0 and "kept" in again.err
    assert (first / "result.json").read_bytes() == before
    assert figures(broken) == figures(whole)


def test_what_is_wrong_is_one_sentence(damc: Any, tmp_path: Path) -> None:
    for words, said in (
        (["reproduce", "stepz"], "did you mean 'steps'"),
        ([*TABLE, "--digits", 4], "--digits"),
        (["reproduce", "steps", "--methods", "T=7"], "T=10, T=30, T=50"),
        (["reproduce", "generation", "--methods", "vea"], "did you mean 'vae'"),
        ([*TABLE, "--processes", 0], "at least 1"),
        (["reproduce", "anomaly", "--digits", 11], "between 0 and 9"),
    ):
        done = damc(*words, "--out", tmp_path / "out")
        assert done.code == 2, done
        assert said in done.err and "Traceback" not in done.err
        assert len(done.err.strip().splitlines()) == 1


def test_lists(damc: Any, tmp_path: Path) -> None:
    listed = damc("reproduce", "list")
    assert listed.code == 0 and "anomaly" in listed.out
    methods = damc("methods", "--out", tmp_path)
    assert methods.code == 0 and "Algorithm 1" in methods.out
    kept = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert {"damc", "vae", "meg"} <= {method["method"] for method in kept}


def test_another_method_trains_samples_and_is_evaluated(damc: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "digits-small", "--method", "vae", "--iterations", 12, "--run", run]
    done = damc(*words, "--set", "sigma=0.4")
    assert done.code == 0, done.err
    drawn = damc("sample", run, "--n", 4)
    assert drawn.code == 0 and "gaussian.png" in drawn.out, drawn.err
    wrong = damc("sample", run, "--source", "energy")
    assert wrong.code == 2 and "must be gaussian, got 'energy'" in wrong.err
    evaluated = damc("evaluate", run, "--features", "pixel-pca", "--n", 50, "--reconstruct", 20)
    assert evaluated.code == 0 and "MSE per pixel" in evaluated.out, evaluated.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("anomaly", "--digits", "x"), "--digits must be whole numbers, got 'x'"),
        (("anomaly", "--seeds", "x"), "--seeds must be whole numbers, got 'x'"),
        (("generation", "--data", "nope"), "data must be among digits, "),
        (("capacity", "--data", "nope"), "data must be among digits, "),
    ],
)
def test_values_that_cannot_be_are_one_sentence(damc: Any, words: Any, sentence: str) -> None:
    done = damc("reproduce", *words)
    (line,) = done.err.strip().splitlines()
    assert done.code == 2 and sentence in line and "nope-small" not in line
