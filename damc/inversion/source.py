"""Where a decoder to invert comes from: an inversion run, a GAN run, or a published file."""

from __future__ import annotations

__all__ = ["Source", "open_source"]

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from damc.errors import BadInput
from damc.inversion.gan import GAN
from damc.inversion.learner import Inversion
from damc.inversion.stylegan import StyleDecoder, load_style_decoder, style_sizes
from damc.tasks.trained import Subjects, check_resize
from damc.train.loading import load
from damc.train.origin import Origin, recall
from damc.train.run import Run


@dataclass(frozen=True)
class Source:
    """A decoder, and what comes with it.

    Attributes:
        path: the run folder or file.
        learner: of an inversion run; the decoder is inside.
        decoder: of a GAN run or a file; None for an inversion run.
        shape: (C, H, W) of the images.
        run: the run folder; None for a file.
    """

    path: Path
    learner: Inversion | None
    decoder: StyleDecoder | None
    shape: tuple[int, int, int]
    run: Run | None

    @property
    def inversion_folder(self) -> Path:
        """The default folder of this decoder's inversion run: inside its own run folder."""
        if self.run is None:
            raise BadInput(
                f"decoder must be a run folder, got the file {self.path}: train its inversion with "
                f"damc train-inversion {self.path} --run DIR --data SOURCE, then give DIR"
            )
        return self.path / "inversion"

    @property
    def output_folder(self) -> Path:
        """The default folder for inverted images."""
        return Path("inversions") if self.run is None else self.path / "inversions"

    def origin(self, root: Path | None = None) -> Origin | None:
        """The images that the run was trained on, if the command line trained it.

        Args:
            root: folder of the named data sets, instead of the one used in training.
        """
        return None if self.run is None else recall(self.run, root)

    def subjects(
        self,
        paths: Sequence[Path] = (),
        *,
        resize: bool = False,
        data_root: Path | None = None,
    ) -> Subjects:
        """The images in `paths`, or, without any, the unseen images of the run.

        Args:
            paths: pictures, folders of pictures, raw or .npy files.
            resize: crop every image in `paths` to its center square and resize it to the
                decoder's size.
            data_root: folder of the named data sets.
        """
        if paths:
            origin = Origin("", self.shape, resize=resize, root=data_root)
            return Subjects(origin.load(tuple(paths)), "the images given")
        check_resize(resize)
        known = self.origin(data_root)
        if known is None:
            raise BadInput(f"images must be given for {self.path}, which does not name its own")
        unseen = known.unseen()
        return Subjects([unseen.images], unseen.kind, unseen.note)


def open_source(path: str | Path, device: torch.device | None = None) -> Source:
    """A decoder from an inversion run, a GAN run, or a weights file in the published layout."""
    path = Path(path)
    if not path.is_dir():
        decoder = load_style_decoder(path).to(device)
        sizes = style_sizes(decoder.state_dict())
        side = sizes["resolution"]
        return Source(path, None, decoder, (sizes["channels"], side, side), None)
    run = Run.open(path)
    name = run.config.get("learner")
    if name not in (GAN.name, Inversion.name):
        raise BadInput(
            "decoder must be a run of damc train-gan or damc train-inversion, got a run of "
            f"{name}: {path}"
        )
    learner = load(path, device)
    if isinstance(learner, GAN):
        return Source(path, None, learner.decoder, learner.sizes.shape, run)
    assert isinstance(learner, Inversion)
    return Source(path, learner, None, learner.problem.shape, run)
