"""One flat loop over any learner: data in, steps, metrics, pictures, checkpoints, resume.

Everything random in iteration k comes from generators seeded by (seed, k, rank), dropout too, and
batch k of the data depends on (seed, k) alone, so a run that stopped and went on is the run that
never did.
"""

from __future__ import annotations

__all__ = ["fit", "load", "open_data"]

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.data import Images, load_images
from damc.disk import sensible
from damc.errors import BadInput, Diverged
from damc.learn import Learner, find_learner
from damc.randomness import derive_seed, global_seed
from damc.train.devices import Place, average, open_place
from damc.train.feed import Stream, batches
from damc.train.run import Run
from damc.train.stopping import stopping
from damc.train.watch import Watch

Hook = Callable[[Learner, Run | None, int], None]


def fit(
    learner: Learner,
    data: Any,
    *,
    iterations: int,
    run: str | Path | None = None,
    batch: int = 128,
    seed: int = 0,
    flip: bool = False,
    preset: str | None = None,
    origin: Mapping[str, Any] | None = None,
    checkpoint_every: int = 500,
    checkpoint_minutes: float = 10.0,
    keep: int = 3,
    log_every: int = 10,
    hook: Hook | None = None,
    hook_every: int = 500,
    accelerator: str = "auto",
    devices: int | str = 1,
    precision: str = "32-true",
    tensorboard: bool = False,
    max_minutes: float | None = None,
    progress: bool = True,
) -> Learner:
    """Trains a learner up to `iterations`, going on where the run folder stopped.

    The learner's modules are in training mode during an iteration, but for frozen ones such as EMA
    copies, and in evaluation mode for the hook, for checkpoints and afterwards. torch's own random
    state, from which dropout draws, is seeded for each iteration and given back after it.

    Args:
        learner: anything with `Learner.step`; it is trained in place and returned.
        data: `Images`, an array, a data set, a name or path that `load_images` takes, or any
            iterable of batches (see `Stream`).
        iterations: the total number, counting those that the learner or the folder has had.
        run: the run folder; None keeps nothing on disk.
        batch: images an iteration, over all processes together.
        seed: of the order of the data and of every draw.
        flip: mirror each image with probability one half.
        preset: the preset's name, remembered in the run folder.
        origin: how to find the data again, plain values remembered in the run folder.
        checkpoint_every: iterations between checkpoints; one is always written at the end.
        checkpoint_minutes: and one whenever so much time went by.
        keep: how many checkpoints stay.
        log_every: iterations between lines of ``metrics.jsonl``.
        hook: called as ``hook(learner, run, iteration)`` every `hook_every` iterations and at
            the end, on the first process: pictures, evaluation.
        hook_every: see `hook`.
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
    if iterations < 1 or checkpoint_every < 1 or log_every < 1 or hook_every < 1:
        raise BadInput(
            "iterations, checkpoint_every, log_every and hook_every must be at least 1, got "
            f"{iterations}, {checkpoint_every}, {log_every} and {hook_every}"
        )
    if batch < 1:
        raise BadInput(f"batch must be at least 1, got {batch}")
    if learner.iteration >= iterations and not _begun(run):
        raise BadInput(
            f"the learner has had {learner.iteration} iterations, and {iterations} counts them: "
            "give a larger number"
        )
    source = open_data(data)
    place = open_place(accelerator, devices, precision)
    folder = None
    if run is not None:
        settings = {
            "learner": learner.name,
            "preset": preset,
            "config": learner.config,
            "data": {**_describe(source), **(origin or {})},
            "training": {"batch": batch, "seed": seed, "flip": flip},
        }
        if place.global_rank == 0:
            folder = Run.create(run, settings)
        place.barrier()
    learner.to(place.device)
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(folder.lock())
        _resume(learner, Path(run) if run is not None else None, place)
        if folder is not None:
            folder.truncate_metrics(learner.iteration)
        loop = _Loop(
            learner, folder, place, iterations, seed, checkpoint_every, checkpoint_minutes, keep
        )
        loop.writer = _writer(folder) if tensorboard and folder is not None else None
        feed = _feed(source, batch, seed, learner.iteration, place, flip)
        stopped = stack.enter_context(stopping(max_minutes))
        stack.callback(learner.eval)
        bar = stack.enter_context(_progress(learner, iterations, progress and loop.first))
        while learner.iteration < iterations:
            x, index = next(feed)
            metrics = loop.step(x, index)
            k = learner.iteration
            if k % log_every == 0 or k == iterations:
                bar.set_postfix_str(_health(loop.log(metrics, x)) + loop.watch.short())
            bar.update()
            stop = loop.agree(stopped.is_set())
            if loop.due() or stop:
                loop.save(metrics)
            if stop and not (stopped.for_now and k == iterations):  # then the run is done
                raise stopped.raised()
            if hook is not None and loop.first and (k % hook_every == 0 or k == iterations):
                hook(learner.eval(), folder, k)
        if stopped.is_set() and not stopped.for_now:
            # Told during the last pictures, when everything was saved already.
            raise KeyboardInterrupt
    return learner


def load(folder: str | Path, device: torch.device | str | None = None) -> Learner:
    """The learner of a run folder with its newest weights, on any device."""
    run = Run.open(folder)
    learner = build(run.config)
    checkpoint = run.load(device=device)
    _load_weights(learner, checkpoint.weights, run.path)
    learner.iteration = checkpoint.iteration
    if device is not None:
        learner.to(device)
    return learner.eval()


def build(settings: dict[str, Any]) -> Learner:
    """The learner that a run folder's settings describe, with fresh weights."""
    name = str(settings.get("learner"))
    kind = find_learner(name)
    with sensible(f"the run's settings describe no {name} learner"):
        return kind.from_config(settings["config"])


def open_data(data: Any) -> Images | Stream:
    """Whatever the user calls data, as something batches can be drawn from."""
    if isinstance(data, Images | Stream):
        return data
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, str | Path) or (indexed and not _is_batches(data)):
        return load_images(data)
    return Stream(data)


class _Loop:
    """What happens around one iteration."""

    def __init__(
        self,
        learner: Learner,
        run: Run | None,
        place: Place,
        iterations: int,
        seed: int,
        checkpoint_every: int,
        checkpoint_minutes: float,
        keep: int,
    ) -> None:
        self.learner, self.run, self.place = learner, run, place
        self.iterations, self.seed, self.keep = iterations, seed, keep
        self.every, self.seconds = checkpoint_every, 60 * checkpoint_minutes
        self.started = self.saved = time.monotonic()
        self.first: bool = place.global_rank == 0
        self.generator = torch.Generator(place.device)
        self.writer: Any = None
        self.watch = Watch(learner)
        _training_mode(learner)

    def step(self, x: Tensor, index: Tensor) -> dict[str, Tensor]:
        k = self.learner.iteration
        device, rank = self.place.device, self.place.global_rank
        self.generator.manual_seed(derive_seed(self.seed, "step", k, rank))
        if not self.learner.training:  # after a hook or a checkpoint
            _training_mode(self.learner)
        try:
            # Modules of the user's, dropout above all, draw from torch's own state.
            with self.place.autocast(), global_seed(derive_seed(self.seed, "own", k, rank), device):
                return self.learner.step(x.to(device), index, self.generator)
        except Diverged as error:
            raise self._told(error, k) from error

    def log(self, metrics: dict[str, Tensor], x: Tensor) -> dict[str, float]:
        """The metrics as numbers, into the run folder; not finite is `Diverged`."""
        k = self.learner.iteration
        try:
            values = self.learner.check(metrics)
            faults = self.watch.look(x, values, last=k == self.iterations) if self.first else []
        except Diverged as error:
            raise self._told(error, k) from error
        if self.run is not None:
            seconds = round(time.monotonic() - self.started, 3)
            told = {"warning": "; ".join(faults)} if faults else {}
            self.run.log({"iteration": k, "seconds": seconds, **values, **told})
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, k)
        return values

    def agree(self, stop: bool) -> bool:
        """Whether any process was told to stop: one that stops alone leaves the others waiting."""
        if self.place.world_size == 1:
            return stop
        votes = torch.tensor(int(stop), device=self.place.device)
        torch.distributed.all_reduce(votes)
        return bool(votes)

    def due(self) -> bool:
        """Whether a checkpoint is to be written now."""
        k = self.learner.iteration
        late = time.monotonic() - self.saved > self.seconds
        return k % self.every == 0 or k == self.iterations or late

    def save(self, metrics: dict[str, Tensor]) -> None:
        """Writes a checkpoint, unless something in it is no longer finite."""
        if self.run is None:
            return
        k = self.learner.iteration
        weights = self.learner.state_dict()
        try:
            self.learner.check(metrics)
            for name, tensor in weights.items():
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise Diverged(f"the weights {name} are not finite at iteration {k}")
            self._probe(k)
        except Diverged as error:
            raise self._told(error, k) from error
        self.run.save(k, weights, self.learner.resume_state(), keep=self.keep)
        self.saved = time.monotonic()

    def _probe(self, k: int) -> None:
        """Draws from the model: finite weights may be too large to compute with, and metrics are
        those from before the update."""
        generator = torch.Generator(self.place.device).manual_seed(0)
        if not self.learner.sources:
            return
        images = self.learner.eval().sample(2, generator=generator)
        if not bool(torch.isfinite(images).all()):
            raise Diverged(f"samples of the model are not finite after iteration {k}")

    def _told(self, error: Diverged, k: int) -> Diverged:
        saved = self.run.checkpoints() if self.run is not None else []
        good = [number for number in saved if number <= self.watch.good_until()]
        none = "no checkpoint is good" if saved else "nothing was saved"
        saved = good
        where = none if not saved else f"the last good state is iteration {saved[-1]}"
        if saved and self.run is not None:
            where += f" in {self.run.path}"
        return Diverged(f"training blew up in iteration {k}: {error}; {where}")


def _training_mode(learner: Learner) -> None:
    """Training mode for what learns; a module all of whose weights are frozen is only used."""
    learner.train()
    parts = [*learner.children()]
    while parts:
        part = parts.pop()
        weights = [weight.requires_grad for weight in part.parameters()]
        if weights and not any(weights):
            part.eval()
        else:
            parts += part.children()


def _begun(run: str | Path | None) -> bool:
    """Whether a run folder has something to go on with."""
    if run is None or not (Path(run) / "config.json").is_file():
        return False
    return Run.open(run).begun()


def _resume(learner: Learner, path: Path | None, place: Place) -> None:
    if path is not None and _begun(path):
        checkpoint = Run.open(path).load()
        _load_weights(learner, checkpoint.weights, path)
        with sensible(f"the resume state in {path} is another learner's"):
            learner.load_resume_state(checkpoint.resume)
    if place.world_size > 1:
        for tensor in learner.state_dict().values():
            torch.distributed.broadcast(tensor, 0)
        learner.average_gradients(average)


def _load_weights(learner: Learner, weights: dict[str, Tensor], path: Path) -> None:
    with sensible(f"the weights in {path} are another model's"):
        learner.load_state_dict(weights)


def _feed(
    source: Images | Stream, batch: int, seed: int, start: int, place: Place, flip: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    ranks = {"rank": place.global_rank, "world": place.world_size}
    if isinstance(source, Stream):
        if flip:
            raise BadInput("flip is for images; an iterable of batches flips its own")
        return source.iterate(start, **ranks)
    return batches(source, batch, seed=seed, start=start, flip=flip, **ranks)


def _describe(source: Images | Stream) -> dict[str, Any]:
    if isinstance(source, Stream):
        return {"name": source.name}
    return {"name": source.name, "count": len(source), "shape": list(source.shape)}


def _is_batches(data: Any) -> bool:
    """A list of batches ``(B, C, H, W)`` rather than an array or a list of single images."""
    return isinstance(data, list | tuple) and len(data) > 0 and getattr(data[0], "ndim", 0) >= 4


def _writer(run: Run) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadInput("tensorboard is not installed: pip install 'damc[tensorboard]'") from error
    writer: Any = SummaryWriter  # it has types where tensorboard is installed, and none elsewhere
    return writer(str(run.path))


@contextlib.contextmanager
def _progress(learner: Learner, iterations: int, show: bool) -> Iterator[Any]:
    from tqdm import tqdm

    with tqdm(
        total=iterations,
        initial=min(learner.iteration, iterations),
        desc=learner.name,
        disable=not show,
        dynamic_ncols=True,
    ) as bar:
        yield bar


def _health(values: dict[str, float]) -> str:
    """The quantities that tell whether training is healthy, short enough for a progress bar."""
    short = {
        "mse": "mse",
        "energy_difference": "dE",
        "displacement": "moved",
        "amortizer_loss": "q",
        "discriminator_loss": "D",
        "decoder_loss": "G",
        "r1": "R1",
        "real_logit": "real",
        "fake_logit": "fake",
    }
    return " ".join(f"{short[k]} {v:.3g}" for k, v in values.items() if k in short)
