"""Training that is stopped, killed or disputed is resumed as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from damc.train.run import Run

Until = Callable[[Callable[[], bool]], None]


def newest(folder: Path) -> int:
    """The iteration of the newest complete checkpoint, 0 if there is none."""
    return max((int(p.name) for p in (folder / "checkpoints").glob("[0-9]" * 8)), default=0)


def same_end(one: Path, other: Path, iteration: int) -> None:
    """Both runs ended with the same files, bit for bit, and logged the same."""
    for name in ("weights.safetensors", "resume.safetensors", "resume.json"):
        place = Path("checkpoints") / f"{iteration:08d}" / name
        assert (one / place).read_bytes() == (other / place).read_bytes(), name
    logged = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in Run.open(run).metrics()]
        for run in (one, other)
    ]
    assert logged[0] == logged[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_where_to_go_on(
    damc: Any, trained: Any, tmp_path: Path, until: Until, number: int
) -> None:
    run = tmp_path / "run"
    words = [*trained.words, "--run", run, "--checkpoint-every", 1000]
    started = damc.start(*words)
    until((run / "metrics.jsonl").exists)
    until(lambda: (run / "metrics.jsonl").stat().st_size > 0)
    started.signal(number)
    done = started.wait()
    assert done.code == 130, done.err
    saved = newest(run)
    assert 10 <= saved < 30
    last = done.err.strip().splitlines()[-1]
    assert (
        last.startswith("damc: stopped at")
        and f"checkpoint {saved} in" in last
        and str(run) in last
    )
    assert "Traceback" not in done.err
    if number == signal.SIGINT:
        assert damc(*words).code == 0
        same_end(run, trained.folder, 30)


def killed_and_resumed(
    damc: Any, words: list[Any], run: Path, until: Until, kills: int, iterations: int
) -> None:
    """Kills the training at random moments, each later than the last, then lets it finish."""
    dice = random.Random(0)
    for _ in range(kills):
        before = newest(run)
        started = damc.start(*words, "--run", run, "--checkpoint-every", 1)
        until(lambda before=before: newest(run) > before)  # type: ignore[misc]
        time.sleep(dice.uniform(0, 0.05))
        started.signal(signal.SIGKILL)
        assert started.wait().code == -signal.SIGKILL
        assert before < newest(run) < iterations
    assert damc(*words, "--run", run, "--checkpoint-every", 10).code == 0


def test_three_kills(damc: Any, trained: Any, tmp_path: Path, until: Until) -> None:
    killed_and_resumed(damc, trained.words, tmp_path / "run", until, 3, 30)
    same_end(tmp_path / "run", trained.folder, 30)


@pytest.mark.slow
def test_ten_kills(damc: Any, trained: Any, tmp_path: Path, until: Until) -> None:
    words = [*trained.words, "--iterations", 100]
    assert damc(*words, "--run", tmp_path / "whole", "--checkpoint-every", 10).code == 0
    killed_and_resumed(damc, words, tmp_path / "run", until, 10, 100)
    same_end(tmp_path / "run", tmp_path / "whole", 100)


def test_a_second_process_on_the_same_folder(
    damc: Any, trained: Any, tmp_path: Path, until: Until
) -> None:
    run = tmp_path / "run"
    words = [*trained.words, "--run", run, "--iterations", 100_000]
    first = damc.start(*words)
    until((run / "metrics.jsonl").exists)
    second = damc(*words)
    assert second.code == 2
    assert second.err.strip().endswith(f"is being trained by process {first.pid}")
    first.signal(signal.SIGTERM)
    assert first.wait().code == 130
    assert newest(run) > 0


def test_ctrl_c_in_a_table_of_several_processes_saves_every_cell(
    tmp_path: Path, until: Until
) -> None:
    words = ["reproduce", "choices", "--methods", "damc's defaults", "--iterations", "400"]
    words += ["--processes", "2", "--threads", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "damc", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as started:
        until(lambda: any(path.stat().st_size for path in tmp_path.rglob("metrics.jsonl")))
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does, to the whole group
        _, told = started.communicate(timeout=60)
    assert started.returncode == 130 and b"resumes it" in told
    (run,) = (path.parent for path in tmp_path.rglob("metrics.jsonl"))
    assert 10 <= newest(run) < 400
