"""Where the images of a run come from, so that later commands find its unseen ones again."""

from __future__ import annotations

__all__ = ["MEMORY", "Origin", "Unseen", "recall", "shape_of"]

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from damc.data import Images, heldout_split, load_images
from damc.disk import read_sealed, seal, write_atomically
from damc.errors import BadInput
from damc.train.run import Run

MEMORY = "data.json"
"""The file of a run folder that says where its images were; it may move, so it is no setting."""


class Unseen(NamedTuple):
    """Images to evaluate a run on: `kind` says which, `note` why, if they are not unseen."""

    images: Images
    kind: str
    note: str


@dataclass(frozen=True)
class Origin:
    """A source of images and what is done to them.

    Attributes:
        source: a name, path or Hub set, as `damc.data.load_images` takes it.
        shape: (C, H, W) of the networks.
        heldout: a class left out of training (`damc.data.heldout_split`), or None.
        resize: cut the center square of every image and resize it to `shape`.
        root: folder of the named data sets; None is the usual place.
    """

    source: str
    shape: tuple[int, int, int]
    heldout: int | None = None
    resize: bool = False
    root: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What has to be the same when a run is resumed."""
        return {"heldout": self.heldout, "resize": self.resize}

    def train(self) -> Images:
        """The images to learn from."""
        if self.heldout is None:
            return self._load("train")
        return heldout_split(self._load("all"), self.heldout, train=True)

    def unseen(self) -> Unseen:
        """The test images of the classes learned, or, where there are none, those learned from."""
        if self.heldout is not None:
            held = heldout_split(self._load("all"), self.heldout, train=False)
            if held.labels is None:
                raise BadInput(f"{self.source} has no labels, which holding out a class needs")
            return Unseen(held.subset(held.labels != self.heldout), "test images", "")
        try:
            return Unseen(self._load("test"), "test images", "")
        except BadInput as error:
            return Unseen(self._load("train"), "training images", str(error))

    def load(self, paths: tuple[Path, ...]) -> list[Images]:
        """Other images for the same networks."""
        return [replace(self, source=str(path))._load("all") for path in paths]

    def remember(self, folder: str | Path) -> None:
        """Writes down in a run folder where the images are."""
        path = Path(self.source).expanduser()
        memory = {
            "source": str(path.resolve()) if path.exists() else self.source,
            "root": None if self.root is None else str(self.root.expanduser().resolve()),
        }
        write_atomically(Path(folder) / MEMORY, seal(memory, indent=2))

    def _load(self, split: str) -> Images:
        c, h, w = self.shape
        options: dict[str, Any] = {}
        if self.resize:
            if h != w:
                raise BadInput(
                    f"images can be resized to squares only, but the networks need {h}x{w}"
                )
            options = {"size": h, "channels": c}
        images = load_images(self.source, root=self.root, split=split, **options)
        if images.shape != self.shape:
            raise BadInput(
                f"the images of {self.source} are {_times(images.shape)}, but the networks need "
                f"{_times(self.shape)} (channels x height x width): add --resize to make them so, "
                "or take another preset"
            )
        return images


def recall(run: Run, root: Path | None = None) -> Origin | None:
    """The origin of a run's images, or None for images that were handed over in Python.

    Args:
        run: the run folder.
        root: folder of the named data sets, instead of the one that the run remembers.
    """
    data, networks = run.config.get("data"), run.config.get("config", {}).get("networks")
    if not isinstance(data, dict) or not isinstance(networks, dict) or "resize" not in data:
        return None
    path = run.path / MEMORY
    memory: dict[str, Any] = {}
    if path.exists() or path.is_symlink():
        memory = read_sealed(path)
    else:
        warnings.warn(
            f"{path}, which says where the images are, is missing: {data.get('name')} is tried",
            stacklevel=2,
        )
    known = memory.get("root")
    heldout, resize = data.get("heldout"), data["resize"]
    if not (isinstance(heldout, int | None) and isinstance(resize, bool)):
        raise BadInput(f"{run.path} must say how its images were read, got {data!r:.60}")
    return Origin(
        str(memory.get("source", data.get("name"))),
        shape_of(run.path, networks),
        heldout,
        resize,
        root if root is not None or known is None else Path(str(known)),
    )


def shape_of(path: Path, networks: dict[str, Any]) -> tuple[int, int, int]:
    """(C, H, W) of the images that the networks of a run's settings take."""
    match networks.get("shape"):
        case [int(c), int(h), int(w)]:
            return c, h, w
    raise BadInput(f"{path} must name the shape of its images, got {networks.get('shape')!r:.60}")


def _times(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))
