"""One flat loop over any learner: data in, steps, metrics, pictures, checkpoints, resume.

Everything random in iteration k comes from generators seeded by (seed, k), and batch k of the data
depends on (seed, k) alone, so a run that stopped and went on is the run that never did. Randomness
belongs to the rows of the batch (`damc.randomness.BatchShare`), so several processes learn what one
learns, up to rounding. What is the process's own: dropout and whatever else draws from torch's own
state, and statistics that a layer takes over its rows of the batch, as BatchNorm does.
"""

from __future__ import annotations

__all__ = ["fit"]

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch

from damc.disk import sensible, tensors
from damc.errors import BadInput
from damc.learn import Learner
from damc.learn.processes import average, broadcast, meet
from damc.report.history import TrainingHistory
from damc.train.callbacks import Callback
from damc.train.devices import Place, open_place
from damc.train.loading import load_state
from damc.train.loggers import Logger, TensorBoard
from damc.train.opening import describe_data, feed, open_data
from damc.train.progress import health, progress_bar
from damc.train.provenance import command_of
from damc.train.run import Run
from damc.train.stopping import OutOfTime, Stop, check_minutes, stopping
from damc.train.trainer import ENOUGH, GO_ON, PAUSE, STOP, Trainer

AnyLearner = TypeVar("AnyLearner", bound=Learner)
Hook = Callable[[Learner, Run | None, int], None]


def fit(
    learner: AnyLearner,
    data: Any,
    *,
    iterations: int | None = None,
    run: str | Path | None = None,
    batch: int = 128,
    seed: int = 0,
    flip: bool = False,
    shift: int = 0,
    preset: str | None = None,
    origin: Mapping[str, Any] | None = None,
    checkpoint_every: int = 500,
    checkpoint_minutes: float = 10.0,
    keep: int = 3,
    log_every: int = 10,
    hook: Hook | None = None,
    hook_every: int = 500,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    accelerator: str = "auto",
    devices: int | str = 1,
    precision: str = "32-true",
    tensorboard: bool = False,
    max_minutes: float | None = None,
    progress: bool = True,
) -> AnyLearner:
    """Trains a learner up to `iterations`, going on where the run folder stopped.

    The learner's modules are in training mode during an iteration, but for frozen ones such as EMA
    copies, and in evaluation mode for the hook, for checkpoints and afterwards. torch's own random
    state, from which dropout draws, is seeded for each iteration and given back after it.

    Args:
        learner: anything with `Learner.step`; it is trained in place and returned.
        data: `Images`, an array, a data set, a name or path that `load_images` takes, or any
            iterable of batches (see `Stream`). Pictures of a folder or a CSV file are brought to
            the size of the learner's networks.
        iterations: the total number, counting those that the learner or the folder has had; by
            default that of the learner's schedules, `learner.settings.horizon`.
        run: the run folder; None keeps nothing on disk.
        batch: images an iteration, over all processes together.
        seed: of the order of the data and of every draw.
        flip: mirror each image with probability one half.
        shift: move each image by up to so many pixels in both directions, its edge repeated.
        preset: the preset's name, remembered in the run folder.
        origin: how to find the data again, plain values remembered in the run folder.
        checkpoint_every: iterations between checkpoints; one is always written at the end.
        checkpoint_minutes: and one whenever so much time went by.
        keep: how many checkpoints stay.
        log_every: iterations between lines of ``metrics.jsonl``.
        hook: called as ``hook(learner, run, iteration)`` every `hook_every` iterations and at
            the end, on the first process: pictures, evaluation.
        hook_every: see `hook`.
        callbacks: functions of a `damc.train.callbacks.Progress`, called on the first process
            whenever metrics are logged; one that raises `StopTraining` ends the training here,
            with a checkpoint.
        loggers: also get the metrics, and every `hook_every` iterations a picture of samples; see
            `damc.train.loggers`.
        accelerator: "auto" (an accelerator if there is one), "cpu", "gpu", or torch's name of one.
        devices: how many, or "auto"; under torchrun its processes count. More than one needs
            lightning-fabric, the extra ``damc[distributed]``.
        precision: "32-true" or "bf16-mixed".
        tensorboard: also write the metrics as TensorBoard events into the folder.
        max_minutes: save and stop after so much time, with `damc.train.stopping.OutOfTime`.
        progress: show a progress bar.

    Raises:
        Diverged: when something is no longer finite, or is nonsense and stays so
            (`damc.train.watch`); names it and the last good checkpoint.
        KeyboardInterrupt: after Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, when the iteration under way
            was finished and saved; `OutOfTime`, which is one, after SIGUSR1 and `max_minutes`.
    """
    if iterations is None:
        iterations = int(getattr(learner.settings, "horizon", 1))
        if iterations <= 1:
            raise BadInput("iterations must be given for a learner without schedules, got none")
    if iterations < 1 or checkpoint_every < 1 or log_every < 1 or hook_every < 1:
        raise BadInput(
            "iterations, checkpoint_every, log_every and hook_every must be at least 1, got "
            f"{iterations}, {checkpoint_every}, {log_every} and {hook_every}"
        )
    if batch < 1:
        raise BadInput(f"batch must be at least 1, got {batch}")
    check_minutes(max_minutes)
    if tensorboard:
        TensorBoard.writer()  # before a folder is made
    if learner.iteration >= iterations and not _begun(run):
        raise BadInput(
            f"the learner has had {learner.iteration} iterations, and {iterations} counts them: "
            "give a larger number"
        )
    source = open_data(data, None if learner.networks is None else learner.networks.shape)
    place = open_place(accelerator, devices, precision)
    folder = None
    training: dict[str, Any] = {"batch": batch, "seed": seed, "flip": flip}
    if shift:  # left out otherwise: older run folders have none
        training["shift"] = shift
    settings = {
        "learner": learner.name,
        "preset": preset,
        "config": learner.config,
        "data": {**describe_data(source), **(origin or {})},
        "training": training,
    }
    if run is not None:
        if place.global_rank == 0:
            folder = Run.create(run, settings)
        meet()
    learner.to(place.device)
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(folder.lock())
        _resume(learner, Path(run) if run is not None else None, place)
        if folder is not None:
            folder.truncate_metrics(learner.iteration)
        events = [TensorBoard(folder.path)] if tensorboard and folder is not None else []
        loop = Trainer(
            learner,
            folder,
            place,
            iterations,
            seed,
            checkpoint_every,
            checkpoint_minutes,
            keep,
            list(callbacks),
            [*loggers, *events],
        )
        stream = feed(source, batch, seed, learner.iteration, place, flip, shift)
        if learner.iteration == 0:
            stream = loop.begin(stream)
        stopped = stack.enter_context(stopping(max_minutes))
        stack.callback(learner.eval)
        bar = stack.enter_context(progress_bar(learner, iterations, progress and loop.first))
        while learner.iteration < iterations:
            x, index = next(stream)
            metrics = loop.step(x, index)
            k = learner.iteration
            enough = False
            if k % log_every == 0 or k == iterations:
                values = loop.log(metrics, x)
                bar.set_postfix_str(health(values) + loop.watch.short())
                enough = loop.call_back(values)
            bar.update()
            stop = loop.agree(_said(stopped, enough))
            if loop.due() or stop:
                loop.save(metrics)
            if stop == STOP or (stop == PAUSE and k < iterations):
                meet()  # the first process has saved
                raise KeyboardInterrupt if stop == STOP else OutOfTime
            if loop.first and (k % hook_every == 0 or k == iterations or stop == ENOUGH):
                loop.show()
                if hook is not None:
                    hook(learner.eval(), folder, k)
            if stop == ENOUGH:
                break
        if stopped.is_set() and not stopped.for_now:
            # Told during the last pictures, when everything was saved already.
            raise KeyboardInterrupt
    known = {key: settings[key] for key in ("preset", "data", "training")}
    learner.provenance = {**known, "command": command_of(settings, learner.iteration)}
    return learner


def _begun(run: str | Path | None) -> bool:
    """Whether a run folder has something to go on with."""
    if run is None or not (Path(run) / "config.json").is_file():
        return False
    return Run.open(run).begun()


def _said(stopped: Stop, enough: bool) -> int:
    """What this process wants after an iteration."""
    if stopped.is_set():
        return PAUSE if stopped.for_now else STOP
    return ENOUGH if enough else GO_ON


def _resume(learner: Learner, path: Path | None, place: Place) -> None:
    """Goes on where the folder stopped; other processes are told by the first, who reads it."""
    if path is not None and place.global_rank == 0 and _begun(path):
        run = Run.open(path)
        checkpoint = run.load()
        load_state(learner, checkpoint.weights, path)
        with sensible(f"the resume state in {path} is another learner's"):
            learner.load_resume_state(checkpoint.resume)
        learner.history = TrainingHistory(
            record for record in run.metrics() if record.get("iteration", 0) <= learner.iteration
        )
    if place.world_size > 1:
        broadcast(learner.state_dict().values())
        learner.load_state_dict(learner.state_dict())  # some modules read what was loaded
        learner.load_resume_state(_of_first(learner.resume_state(), place))
        learner.average_gradients(average)


def _of_first(state: dict[str, Any], place: Place) -> dict[str, Any]:
    """The resume state of the first process."""
    parts, rest = tensors.pack(state)
    blobs = [tensors.to_safetensors(parts), json.dumps(rest).encode()]
    lengths = torch.tensor([len(blob) for blob in blobs], device=place.device)
    broadcast([lengths])
    sent = []
    for blob, length in zip(blobs, lengths.tolist(), strict=True):
        whole = torch.zeros(length, dtype=torch.uint8)
        if place.global_rank == 0:
            whole = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        whole = whole.to(place.device)
        broadcast([whole])
        sent.append(whole.cpu().numpy().tobytes())
    restored: dict[str, Any] = tensors.unpack(safetensors.torch.load(sent[0]), json.loads(sent[1]))
    return restored
