"""Signals and limits of time end a run with a checkpoint, and tell "go on" from "done"."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from damc.data import load_images
from damc.errors import BadInput
from damc.learn import find_method
from damc.train.loop import fit
from damc.train.run import Run
from damc.train.stopping import OutOfTime, Stop, stopping


def train(run: Path, iterations: int = 6, **options: Any) -> None:
    learner = find_method("vae").from_preset("digits-small")
    fit(
        learner,
        load_images("digits"),
        iterations=iterations,
        batch=8,
        run=run,
        hook_every=1,
        progress=False,
        **options,
    )


@pytest.mark.parametrize(
    ("name", "goes_on"),
    [("SIGINT", False), ("SIGTERM", False), ("SIGHUP", False), ("SIGUSR1", True)],
)
def test_a_signal_saves_and_stops(tmp_path: Path, name: str, goes_on: bool) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)

    def tell(learner: Any, run: Any, k: int) -> None:
        if k == 3:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt) as caught:
        train(tmp_path / "run", hook=tell)
    assert isinstance(caught.value, OutOfTime) is goes_on
    assert Run.open(tmp_path / "run").checkpoints() == [4]
    assert signal.getsignal(number) == before
    train(tmp_path / "run")
    assert Run.open(tmp_path / "run").checkpoints() == [4, 6]


def test_time_that_is_over_saves_and_stops(tmp_path: Path) -> None:
    def wait(learner: Any, run: Any, k: int) -> None:
        time.sleep(0.05)

    with pytest.raises(OutOfTime) as caught:
        train(tmp_path / "run", iterations=10_000, hook=wait, max_minutes=0.5 / 60)
    assert caught.value.code == 75
    (saved,) = Run.open(tmp_path / "run").checkpoints()
    assert 1 <= saved < 20


def test_a_run_that_was_done_in_time_is_done(tmp_path: Path) -> None:
    """Time is over in the very last iteration: there is nothing to go on with."""
    train(tmp_path / "run", iterations=1, max_minutes=1e-9)
    assert Run.open(tmp_path / "run").checkpoints() == [1]


def test_an_iteration_that_might_not_end_in_time_is_not_begun() -> None:
    stop = Stop(max_minutes=0.3 / 60)
    time.sleep(0.2)
    assert stop.is_set()  # another 0.2 s would end after 0.3 s
    assert stop.for_now


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_has_no_signals_but_a_limit() -> None:
    found = []

    def work() -> None:
        with stopping(1e-9) as stop:
            found.append(stop.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_cannot_be_is_refused(minutes: float) -> None:
    with pytest.raises(BadInput, match="max_minutes must be a positive number"):
        Stop(minutes)


def test_exit_codes_tell_go_on_from_stopped() -> None:
    from damc.cli import _outcome

    assert _outcome(OutOfTime("later")) == (75, "later")
    assert _outcome(KeyboardInterrupt("by hand")) == (130, "by hand")


def test_only_a_later_signal_is_a_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal's Ctrl-C reaches a process of torchrun twice: from the terminal and torchrun."""
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set() and not stop.for_now
        monkeypatch.setattr("damc.train.stopping._ECHO", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
