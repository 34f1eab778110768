"""Callbacks see what was logged, and stop a run so that it can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from damc import DAMC, BadInput, fit, load
from damc.train.callbacks import EarlyStopping, Progress, StopTraining
from damc.train.run import Run


def learner() -> DAMC:
    torch.manual_seed(0)
    return DAMC.from_preset(
        "digits-small", posterior_steps=2, prior_steps=2, updates=1, start_steps=2
    )


def images() -> Tensor:
    return torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 1


def quiet(trained: DAMC, iterations: int, **options: Any) -> DAMC:
    return fit(trained, images(), iterations=iterations, batch=8, progress=False, **options)


def test_callbacks_see_every_logged_iteration_in_evaluation_mode(tmp_path: Path) -> None:
    seen: list[Progress] = []
    modes: list[bool] = []

    def callback(progress: Progress) -> None:
        seen.append(progress)
        modes.append(progress.learner.training)

    trained = quiet(learner(), 5, run=tmp_path, log_every=2, callbacks=[callback])
    assert [(p.iteration, p.iterations) for p in seen] == [(2, 5), (4, 5), (5, 5)]
    assert (
        seen[0].metrics["mse"]
        == trained.history[0]["mse"]
        == Run.open(tmp_path).metrics()[0]["mse"]
    )
    assert seen[0].run is not None and seen[0].run.path == tmp_path
    assert modes == [False, False, False]


def test_stopping_leaves_a_checkpoint_from_which_the_run_goes_on_bit_for_bit(
    tmp_path: Path,
) -> None:
    def stop(progress: Progress) -> None:
        if progress.iteration == 3:
            raise StopTraining("three are enough")

    hooked: list[int] = []
    stopped = quiet(
        learner(),
        8,
        run=tmp_path / "a",
        log_every=1,
        callbacks=[stop],
        hook=lambda learner, run, k: hooked.append(k),
    )
    assert stopped.iteration == 3 and not stopped.training
    assert Run.open(tmp_path / "a").checkpoints() == [3]
    assert hooked == [3]  # the pictures of the end are drawn
    resumed = quiet(learner(), 8, run=tmp_path / "a")
    whole = quiet(learner(), 8, run=tmp_path / "b")
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name


def test_callbacks_do_not_change_the_run() -> None:
    plain = quiet(learner(), 4)
    seen: list[Tensor] = []

    def look(progress: Progress) -> None:
        seen.append(progress.learner.sample(2))

    watched = quiet(learner(), 4, log_every=1, callbacks=[look])
    assert len(seen) == 4
    assert all(
        torch.equal(a, b)
        for a, b in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True)
    )


def test_early_stopping_waits_for_its_patience() -> None:
    values = iter([5.0, 4.0, 4.5, 3.9, 4.2, 4.1, 4.3, 1.0])
    stop = EarlyStopping(measure=lambda learner: next(values), patience=3)
    trained = quiet(learner(), 20, log_every=1, callbacks=[stop])
    assert trained.iteration == 7  # 3.9 in the fourth, and three more without a better one
    assert (stop.best, stop.best_iteration) == (3.9, 4)


def test_early_stopping_watches_a_metric() -> None:
    stop = EarlyStopping("mse", patience=2, least=1e9)  # nothing ever improves by so much
    assert quiet(learner(), 20, log_every=1, callbacks=[stop]).iteration == 3
    with pytest.raises(BadInput, match=r"metric must be one of .*mse.*, got 'fid'"):
        quiet(learner(), 3, log_every=1, callbacks=[EarlyStopping("fid")])
    with pytest.raises(BadInput, match="patience and every must be at least 1"):
        EarlyStopping(patience=0)


def test_an_error_in_a_callback_is_raised_as_it_is() -> None:
    def broken(progress: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quiet(learner(), 3, log_every=1, callbacks=[broken])


def test_the_history_survives_a_resume_and_a_load(tmp_path: Path) -> None:
    quiet(learner(), 3, run=tmp_path, log_every=1)
    resumed = quiet(learner(), 5, run=tmp_path, log_every=1)
    assert resumed.history.values("iteration") == [1, 2, 3, 4, 5]
    again = load(tmp_path)
    assert again.history.values("mse") == resumed.history.values("mse")
    assert "mse" in repr(again.history)
