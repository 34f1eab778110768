"""`damc toy`: its options, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from damc.cli.options import parse
from damc.cli.toy import Toy
from damc.errors import BadInput
from damc.toy import experiment
from damc.toy.settings import ToySettings
from damc.toy.table import table

ROW = {
    "name": "q(z|x)",
    "c2st": 0.51,
    "c2st_sd": 0.01,
    "energy_distance": 0.002,
    "gradients": 0,
    "seconds": 1.0,
}
RESULT = {
    "settings": {"samples": 2000, "heldout": 16, "iterations": 500},
    "table": [ROW],
    "gradient_calls": 12_000,
    "seconds": {"train": 60.0, "all": 90.0},
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of `run_toy`, which does nothing here."""
    seen: list[Any] = []

    def run_toy(*words: Any, **options: Any) -> dict[str, Any]:
        seen.append((words, options))
        return RESULT

    monkeypatch.setattr(experiment, "run_toy", run_toy)
    return seen


def test_the_table_and_the_files_are_printed(
    given: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Toy(seed=3, out=tmp_path).run()
    printed = capsys.readouterr().out
    assert printed.startswith(table(RESULT)) and str(tmp_path / "pooled.png") in printed
    assert given == [((tmp_path, 3, "pinwheel", None), {"settings": ToySettings()})]


def test_the_papers_kernel_has_its_own_steps(given: list[Any], tmp_path: Path) -> None:
    Toy(out=tmp_path, kernel="langevin").run()
    settings = given[0][1]["settings"]
    assert (settings.kernel, settings.step_size, settings.steps) == ("langevin", 0.1, 50)


def test_a_short_run_is_tested_shortly_and_says_so(
    given: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Toy(out=tmp_path, iterations=5, kernel="mala").run()
    settings = given[0][1]["settings"]
    assert (settings.samples, settings.long_steps, settings.kernel) == (400, 200, "mala")
    assert "a short run: tests on 4 observations with 400 samples" in capsys.readouterr().out
    Toy(out=tmp_path, iterations=100).run()
    assert given[1][1]["settings"] == ToySettings()
    assert "a short run" not in capsys.readouterr().out


def test_the_command_line_reads_its_options() -> None:
    words = ["--seed=3", "--out=a/b", "--prior=gaussian", "--iterations=7", "--threads=2"]
    expected = Toy(3, Path("a/b"), "gaussian", "independence", 7, 2)
    assert parse(Toy, "damc toy", words) == expected
    assert parse(Toy, "damc toy", []).prior == "pinwheel"


def test_bad_options_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="threads must be at least 1, got 0"):
        Toy(out=tmp_path, threads=0).run()
    with pytest.raises(BadInput, match="must be one of"):
        parse(Toy, "damc toy", ["--kernel", "jump"])
