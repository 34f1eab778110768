"""What happens around one training iteration: randomness, metrics, pictures, checkpoints."""

from __future__ import annotations

__all__ = ["ENOUGH", "GO_ON", "PAUSE", "STOP", "Trainer"]

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput, Diverged
from damc.learn import Learner
from damc.learn.processes import broadcast, largest, mean_of_all, of_all_processes, world
from damc.randomness import BatchShare, derive_seed, global_seed
from damc.train.callbacks import Callback, Progress, StopTraining
from damc.train.devices import Place
from damc.train.loggers import Logger, grid
from damc.train.run import Run
from damc.train.watch import Watch

GO_ON, ENOUGH, PAUSE, STOP = range(4)
"""What a process says after an iteration: nothing, a callback wants to end, the time is over or a
scheduler asked, Ctrl-C."""

Batches = Iterator[tuple[Tensor, Tensor]]
"""Images ``(B, C, H, W)`` and their numbers ``(B,)``."""

_NUMBERS = 2**26  # most that initial weights are set by, a quarter of a gigabyte of images


class Trainer:
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
        callbacks: list[Callback],
        loggers: list[Logger],
    ) -> None:
        self.learner, self.run, self.place = learner, run, place
        self.iterations, self.seed, self.keep = iterations, seed, keep
        self.every, self.seconds = checkpoint_every, 60 * checkpoint_minutes
        self.started = self.saved = time.monotonic()
        self.first: bool = place.global_rank == 0
        self.generator: torch.Generator | BatchShare = torch.Generator(place.device)
        if place.world_size > 1:
            self.generator = BatchShare(place.device, place.global_rank, place.world_size)
        self.callbacks, self.loggers = callbacks, loggers
        self.watch = Watch(learner)
        self._checked = False
        _set_training_mode(learner)

    def begin(self, stream: Batches) -> Batches:
        """Lets a new learner set its weights by the first images; they stay in the stream."""
        wanted, seen, end = self.learner.initial_images, 0, None
        taken: list[tuple[Tensor, Tensor]] = []
        while seen < wanted:
            try:
                x, index = next(stream)
            except BadInput as error:  # a stream with fewer batches, of which some may be enough
                if not taken:
                    raise
                end = error
                break
            self._check(x.to(self.place.device))
            wanted = min(wanted, max(len(x), _NUMBERS // x[0].numel()))
            taken.append((x, index))
            seen += len(x) * self.place.world_size
        if taken:
            x = torch.cat([of_all_processes(x.to(self.place.device)) for x, _ in taken])
            self.learner.initialize(x)
            broadcast(self.learner.state_dict().values())  # what the first process computed
        return _again(taken, end, stream)

    def _check(self, x: Tensor) -> None:
        """Once: the networks fit these images and each other."""
        if not self._checked:
            self.learner.check_networks(x)
            self._checked = True

    def step(self, x: Tensor, index: Tensor) -> dict[str, Tensor]:
        """One iteration of the learner, whose randomness depends on its number alone."""
        k = self.learner.iteration
        device, rank = self.place.device, self.place.global_rank
        self._check(x.to(device))
        seed = derive_seed(self.seed, "step", k, 0)
        if isinstance(self.generator, BatchShare):
            self.generator.seed_batch(seed, own=derive_seed(self.seed, "process", k, rank))
        else:
            self.generator.manual_seed(seed)
        if not self.learner.training:  # after a hook or a checkpoint
            _set_training_mode(self.learner)
        try:
            # Modules of the user's, dropout above all, draw from torch's own state.
            with self.place.autocast(), global_seed(derive_seed(self.seed, "own", k, rank), device):
                return self.learner.step(x.to(device), index, self.generator)
        except Diverged as error:
            raise self._told(error, k) from error

    def log(self, metrics: dict[str, Tensor], x: Tensor) -> dict[str, float]:
        """The metrics as numbers, into the run folder; not finite, or nonsense, is `Diverged`."""
        k = self.learner.iteration
        try:
            values = self.learner.check(_of_all(metrics))
            faults = self.watch.look(x, values, last=k == self.iterations) if self.first else []
        except Diverged as error:
            raise self._told(error, k) from error
        seconds = round(time.monotonic() - self.started, 3)
        told = {"warning": "; ".join(faults)} if faults else {}
        record: dict[str, Any] = {"iteration": k, "seconds": seconds, **values, **told}
        self.learner.history.append(record)
        if self.run is not None:
            self.run.log(record)
        if self.first:
            for logger in self.loggers:
                logger.log(values, k)
        return values

    def call_back(self, values: dict[str, float]) -> bool:
        """Calls the callbacks; whether one of them wants to stop."""
        if not self.first or not self.callbacks:
            return False
        k = self.learner.iteration
        progress = Progress(self.learner.eval(), self.run, k, self.iterations, values)
        try:
            for callback in self.callbacks:
                callback(progress)
        except StopTraining:
            return True
        return False

    def show(self) -> None:
        """Samples of the model, for the loggers."""
        if not self.loggers or not self.learner.sources:
            return
        generator = torch.Generator(self.place.device).manual_seed(0)
        images = self.learner.eval().sample(16, generator=generator)
        if images.ndim == 4 and images.shape[1] in (1, 3):
            for logger in self.loggers:
                logger.log_image("samples", grid(images), self.learner.iteration)

    def agree(self, said: int) -> int:
        """The most that any process says: one that stops alone leaves the others waiting."""
        return largest(said, self.place.device)

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
        where = "no checkpoint is good" if saved else "nothing was saved"
        if good and self.run is not None:
            where = f"the last good state is iteration {good[-1]} in {self.run.path}"
        return Diverged(f"training blew up in iteration {k}: {error}; {where}")


def _again(taken: list[tuple[Tensor, Tensor]], end: BadInput | None, stream: Batches) -> Batches:
    """Batches that were taken from a stream, and then the rest of it, or how it ended."""
    yield from taken
    if end is not None:
        raise end
    yield from stream


def _of_all(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Metrics as means over processes, so that all of them see what is not finite in one."""
    if world() == 1:
        return metrics
    means = mean_of_all(torch.stack([value.detach().float() for value in metrics.values()]))
    return dict(zip(metrics, means.unbind(), strict=True))


def _set_training_mode(learner: Learner) -> None:
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
