"""A trained run, opened: its learner, its folder, and images to measure it on."""

from __future__ import annotations

__all__ = ["Subjects", "Trained", "check_resize", "image_shape"]

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from damc.data import Images
from damc.errors import BadInput
from damc.learn.learner import Learner
from damc.tasks.modules import learner_from
from damc.train.loading import load
from damc.train.origin import Origin, Unseen, recall, shape_of
from damc.train.run import Run


class Subjects(NamedTuple):
    """Sets of images of one shape; `kind` says what they are, `note` why they are not unseen."""

    sets: list[Images]
    kind: str
    note: str = ""


@dataclass(frozen=True)
class Trained:
    """A trained run.

    Attributes:
        learner: with the weights of its last checkpoint.
        run: the run folder.
        origin: where its images come from; None for a run that was trained from Python.
        data_root: folder of the named data sets, if it is not the one trained from.
    """

    learner: Learner
    run: Run
    origin: Origin | None
    data_root: Path | None = None

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        device: torch.device | None = None,
        data_root: str | Path | None = None,
        module: str | None = None,
    ) -> Trained:
        """Opens a run folder.

        Args:
            folder: the run folder.
            device: where the learner computes; the CPU by default.
            data_root: folder of the named data sets; by default the one trained from.
            module: of a run of your own networks, "package.module:factory", which makes them.
        """
        root = None if data_root is None else Path(data_root)
        own = None if module is None else learner_from(module)
        learner, run = load(folder, device, learner=own), Run.open(folder)
        return cls(learner, run, recall(run, root), root)

    @cached_property
    def unseen(self) -> Unseen | None:
        """Images that the run has not seen; None for a run that was trained from Python."""
        return None if self.origin is None else self.origin.unseen()

    @property
    def name(self) -> str:
        """Of the preset, or of the method where there is none."""
        return str(self.run.config.get("preset") or self.learner.name)

    @property
    def seed(self) -> int:
        """Of the training."""
        return int(self.run.config.get("training", {}).get("seed", 0))

    def subjects(self, paths: Sequence[str | Path] = (), *, resize: bool = False) -> Subjects:
        """The images in `paths`, or, without any, the run's unseen images.

        Args:
            paths: pictures, folders of pictures, raw or .npy files.
            resize: crop every image in `paths` to its center square and resize it to the model's
                size.
        """
        if paths:
            # Read as the run's own images were, so that a range of values means the same.
            known = self.origin or Origin("", image_shape(self.run), root=self.data_root)
            origin = replace(known, resize=resize or known.resize)
            return Subjects(origin.load(tuple(map(Path, paths))), "the images given")
        check_resize(resize)
        if self.unseen is None:
            raise BadInput(
                f"images must be given for {self.run.path}, which was trained from Python"
            )
        return Subjects([self.unseen.images], self.unseen.kind, self.unseen.note)


def check_resize(resize: bool) -> None:
    """Refuses to resize a run's own images, which have its size."""
    if resize:
        raise BadInput("resize must be left out without IMAGES: a run's own images have its size")


def image_shape(run: Run) -> tuple[int, int, int]:
    """(C, H, W) of the images that a run's networks take."""
    networks = run.config.get("config", {}).get("networks") or run.config.get("data")
    if not isinstance(networks, dict) or "shape" not in networks:
        raise BadInput(
            f"{run.path} must be a run that knows the shape of its images, got one of batches from "
            "Python: use it from Python"
        )
    return shape_of(run.path, networks)
