"""Train a preset in a run folder, with pictures on the way and a report at the end."""

from __future__ import annotations

__all__ = ["Training", "default_folder", "last_checkpoint", "parse_settings"]

import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from damc.data import Division, Images
from damc.data.pictures import check_apart
from damc.errors import BadInput, Diverged
from damc.learn import find_method
from damc.learn.damc import DAMCSettings
from damc.learn.learner import Learner
from damc.learn.presets import Preset
from damc.learn.settings import check_names
from damc.randomness import global_seed
from damc.tasks.modules import learner_from
from damc.tasks.summarize import Summary, draw_pictures, summarize
from damc.train.loading import build
from damc.train.loop import fit
from damc.train.origin import HELD_OUT, MEMORY, Origin, Unseen, read_division
from damc.train.run import Run


@dataclass(frozen=True)
class Training:
    """One training run: what is trained, on which images, for how long.

    Attributes:
        preset: networks, settings and batch size.
        folder: the run folder; a run that it holds already is resumed.
        iterations: in total, counting those done before.
        origin: the images.
        method: the way of learning, a name in `damc.learn.METHODS`.
        seed: of the initial weights, the order of the images and every draw.
        batch: images an iteration; the preset's by default.
        changes: settings of the preset to change, by name.
        pictures_every: iterations between pictures; by default ten times in a run, not
            more often than every hundred.
        loop: further options of `damc.fit`.
        resume: take networks and settings from the run folder instead of the preset.
        module: "package.module:factory" that makes a learner with networks of your own, in place
            of the preset's.
    """

    preset: Preset
    folder: Path
    iterations: int
    origin: Origin
    method: str = "damc"
    seed: int = 0
    batch: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    pictures_every: int | None = None
    loop: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    module: str | None = None

    def run(self) -> Summary | None:
        """Trains, and summarizes on the first process; the others give None."""
        if self.iterations < 1:
            raise BadInput(f"iterations must be at least 1, got {self.iterations}")
        images, unseen = self.origin.train(), self.origin.unseen()
        check_apart("run", self.folder, self.origin.source)
        self._check_data()
        learner = self._learner()
        with self._remembered():
            self._fit(learner, images, unseen)
        if torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
            return None
        self.origin.remember(self.folder)
        return summarize(learner, Run.open(self.folder), unseen, seed=self.seed)

    def _learner(self) -> Learner:
        """A fresh learner: of the user's module, of the run folder's settings, or of the preset."""
        if self.module is not None:
            if self.changes:
                raise BadInput(
                    "settings must be changed in the factory of --module, got --set "
                    f"{' '.join(self.changes)}"
                )
            return learner_from(self.module, seed=self.seed)
        kind = find_method(self.method)
        with global_seed(self.seed):
            if not self.resume:
                return kind.from_preset(self.preset, **self._schedule(), **self.changes)
            learner = build(Run.open(self.folder).config)
            if type(learner) is not kind or learner.networks is None:
                raise BadInput(
                    f"method must be that of {self.folder}, {learner.name}, got {kind.name}"
                )
            return kind.build(learner.networks, replace(learner.settings, **self.changes))

    def _check_data(self) -> None:
        """Refuses to go on with other images than a run was begun with."""
        begun = read_division(self.folder)
        if begun is None or not (self.folder / "config.json").is_file():
            return
        now = self.origin.settled_division or Division((), ())
        new, missing = begun.difference(now.train + now.held_out)
        if new or missing:
            raise BadInput(
                f"the images of {self.origin.source} must be those that {self.folder} was begun "
                f"with, got {new} new ones and {missing} missing: give another run folder"
            )

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        """Writes down the images before the first iteration; nothing stays of a refused run."""
        if (self.folder / "config.json").is_file():
            yield  # what a run in the folder remembers stays, until its training has gone on
            return
        made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.origin.remember(self.folder)
        try:
            yield
        except BaseException:
            if not (self.folder / "config.json").is_file():
                for name in (MEMORY, HELD_OUT):
                    (self.folder / name).unlink(missing_ok=True)
                for path in made:
                    with suppress(OSError):  # something else is inside by now
                        path.rmdir()
            raise

    def _fit(self, learner: Learner, images: Images, unseen: Unseen) -> None:
        fit(
            learner,
            images,
            iterations=self.iterations,
            run=self.folder,
            batch=self.preset.batch if self.batch is None else self.batch,
            seed=self.seed,
            flip=self.preset.flip,
            shift=self.preset.shift,
            preset=self.preset.name if self.module is None else None,
            origin=self.origin.settings,
            hook=lambda learner, run, k: self._watch(learner, unseen, k),
            hook_every=self.pictures_every or max(100, self.iterations // 10),
            **self.loop,
        )

    def _schedule(self) -> dict[str, int]:
        """Learning rates and stages follow this run's iterations, unless `changes` say otherwise;
        a resumed run keeps the schedule that it began with."""
        names = {field.name for field in fields(find_method(self.method).settings_type)}
        if "horizon" not in names or "horizon" in self.changes:
            return {}
        if (self.folder / "config.json").is_file():
            known = Run.open(self.folder).config["config"]["settings"]
            return {"horizon": known["horizon"]} if "horizon" in known else {}
        return {"horizon": self.iterations}

    def _watch(self, learner: Learner, unseen: Unseen, iteration: int) -> None:
        if iteration < self.iterations:  # the last pictures come with the summary
            try:
                draw_pictures(learner, self.folder, unseen, seed=self.seed)
            except Diverged as error:
                saved = Run.open(self.folder).checkpoints()
                where = f"the last checkpoint is {saved[-1]}" if saved else "there is no checkpoint"
                raise Diverged(f"iteration {iteration}: {error}; {where}") from error


def default_folder(preset: str, method: str = "damc") -> Path:
    """Where a run goes by default: ``runs/PRESET``, or ``runs/PRESET-METHOD`` for other methods."""
    return Path("runs") / (preset if method == "damc" else f"{preset}-{method}")


def last_checkpoint(folder: str | Path) -> int | None:
    """The iteration of a run folder's last checkpoint; None if it has none."""
    folder = Path(folder)
    saved = Run.open(folder).checkpoints() if (folder / "config.json").is_file() else []
    return saved[-1] if saved else None


def parse_settings(texts: Iterable[str], kind: Any = DAMCSettings) -> dict[str, Any]:
    """Settings, of Algorithm 1 or another dataclass, written as "name=value", with their types.

    Example:
        >>> parse_settings(["updates=3", "sigma=0.3", "noise_negatives=no"])
        {'updates': 3, 'sigma': 0.3, 'noise_negatives': False}
    """
    hints = typing.get_type_hints(kind)
    parsed = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"a setting must be written name=value, got {text!r}")
        check_names([name], kind)
        parsed[name] = _value(name, value, hints[name])
    return parsed


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _value(name: str, text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        kinds = [part for part in typing.get_args(kind) if part is not types.NoneType]
        if text.lower() == "none" and len(kinds) < len(typing.get_args(kind)):
            return None
        kind = kinds[0]
    try:
        if kind is bool:
            return _TRUTHS[text.lower()]
        if kind is float and not abs(float(text)) < float("inf"):
            raise ValueError(text)
        return kind(text)
    except (KeyError, ValueError, TypeError) as error:
        words = {bool: "yes or no", int: "a whole number", float: "a finite number"}
        raise BadInput(f"{name} must be {words.get(kind, str(kind))}, got {text!r}") from error
