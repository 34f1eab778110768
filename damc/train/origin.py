"""Where the images of a run come from, so that later commands find its unseen ones again."""

from __future__ import annotations

__all__ = [
    "HELD_OUT",
    "MEMORY",
    "Origin",
    "Unseen",
    "read_division",
    "recall",
    "recall_scan",
    "shape_of",
]

import hashlib
import json
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from damc.data import Division, Images, Reading, divide, heldout_split, load_images
from damc.disk import read_sealed, seal, write_atomically
from damc.errors import BadInput, NoSplit
from damc.train.run import Run

MEMORY = "data.json"
"""The file of a run folder that says where its images were; it may move, so it is no setting."""

HELD_OUT = "heldout.json"
"""The file of a run folder with the content hashes of its images, and which were held out."""


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
        resize: cut a part of the networks' aspect from the center of every image and resize it to
            `shape`.
        root: folder of the named data sets; None is the usual place.
        reading: how files and arrays are read.
        test_fraction: of a source without test images, the share that is held out of training, by
            content (`damc.data.Division`); 0 holds out none.
        division: the images held out before, of a run that is opened again.
        loaded: the training split of the source, if it has been loaded already.
    """

    source: str
    shape: tuple[int, int, int]
    heldout: int | None = None
    resize: bool = False
    root: Path | None = None
    reading: Reading = field(default_factory=Reading)
    test_fraction: float = 0.1
    division: Division | None = field(default=None, repr=False)
    loaded: Images | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise BadInput(f"test_fraction must lie in [0, 1), got {self.test_fraction:g}")

    @property
    def settings(self) -> dict[str, Any]:
        """What has to be the same when a run is resumed."""
        train = self.train()
        scan, settled = train.scan, self.settled_division
        reading = {
            "background": self.reading.background,
            "value_range": self.reading.value_range,
            "bits": dict(self.reading.bits if scan is None else scan.depths),
            "skip_corrupt": self.reading.skip_corrupt,
        }
        return {
            "heldout": self.heldout,
            "resize": self.resize,
            "reading": reading,
            "test_fraction": self.test_fraction,
            "division": None if settled is None else _digest(settled),
        }

    def train(self) -> Images:
        """The images to learn from."""
        return self._parts[0]

    def unseen(self) -> Unseen:
        """The test images of the classes learned, else those held out, or, where there are none,
        those learned from."""
        return self._parts[1]

    @property
    def settled_division(self) -> Division | None:
        """Which images are held out; None where the source has test images, or none are."""
        return self._parts[2]

    def load(self, paths: tuple[Path, ...], *, keep: bool = True) -> list[Images]:
        """Other images for the same networks, read as those trained on: a few may well be dark.

        Args:
            paths: pictures, folders of pictures, raw or .npy files.
            keep: False where each is read once, see `damc.data.Reading`.
        """
        reading = replace(self.reading, ask=False, keep=keep)
        other = replace(self, reading=reading, division=None, loaded=None)
        return [replace(other, source=str(path))._load("all") for path in paths]

    def remember(self, folder: str | Path, *, looked: bool = True) -> None:
        """Writes down in a run folder where the images are, and which are held out.

        Args:
            folder: the run folder.
            looked: False for a run whose images need not be here, such as a converted one.
        """
        path = Path(self.source).expanduser()
        memory: dict[str, Any] = {
            "source": str(path.resolve()) if path.exists() else self.source,
            "root": None if self.root is None else str(self.root.expanduser().resolve()),
        }
        scan, division = (self.train().scan, self.settled_division) if looked else (None, None)
        if scan is not None:
            memory["scan"] = scan.table
        if division is not None:
            lists = {"held_out": list(division.held_out), "train": list(division.train)}
            write_atomically(Path(folder) / HELD_OUT, seal(lists))
        write_atomically(Path(folder) / MEMORY, seal(memory, indent=2))

    @cached_property
    def _parts(self) -> tuple[Images, Unseen, Division | None]:
        if self.heldout is not None:
            everything = self._load("all")
            held = heldout_split(everything, self.heldout, train=False)
            if held.labels is None:
                raise BadInput(f"{self.source} has no labels, which holding out a class needs")
            unseen = Unseen(held.subset(held.labels != self.heldout), "test images", "")
            return heldout_split(everything, self.heldout, train=True), unseen, None
        images = self._load("train") if self.loaded is None else self.loaded
        if self.division is None:
            try:
                return images, Unseen(self._load("test"), "test images", ""), None
            except NoSplit as error:
                untested = str(error)
            if self.test_fraction == 0:
                return images, Unseen(images, "training images", untested), None
        try:
            division = self.division or Division.choose(images.hashes(), self.test_fraction)
        except BadInput as error:
            return images, Unseen(images, "training images", str(error)), None
        train, held = divide(images, division)
        if not len(held) or not len(train):
            raise BadInput(
                f"{self.source} must hold the images that the run was trained on, got "
                f"{len(train)} of its training images and {len(held)} of those held out"
            )
        return train, Unseen(held, "held-out images", ""), division

    def _load(self, split: str) -> Images:
        c, h, w = self.shape
        options: dict[str, Any] = {"size": (h, w), "channels": c} if self.resize else {}
        images = load_images(
            self.source, root=self.root, split=split, reading=self.reading, **options
        )
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
    data = run.config.get("data")
    # Networks of the user's own are not described, but the images that they learned are.
    networks = run.config.get("config", {}).get("networks") or data
    if not isinstance(data, dict) or not isinstance(networks, dict) or "resize" not in data:
        return None
    memory = _read(run.path / MEMORY)
    if not memory:
        warnings.warn(
            f"{run.path / MEMORY}, which says where the images are, is missing: "
            f"{data.get('name')} is tried",
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
        *_how_read(run.path, data),
        read_division(run.path),
    )


def shape_of(path: Path, networks: dict[str, Any]) -> tuple[int, int, int]:
    """(C, H, W) of the images that the networks of a run's settings take."""
    match networks.get("shape"):
        case [int(c), int(h), int(w)]:
            return c, h, w
    raise BadInput(f"{path} must name the shape of its images, got {networks.get('shape')!r:.60}")


def _how_read(path: Path, data: dict[str, Any]) -> tuple[Reading, float]:
    """How a run's settings say that its images were read, and which share was held out."""
    reading, fraction = data.get("reading", {}), data.get("test_fraction", 0.1)
    try:
        return Reading(**reading), float(fraction)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"{path} must say how its images were read, got {reading!r:.60}: {error}"
        ) from error


def recall_scan(folder: str | Path) -> dict[str, str]:
    """What was found in a run's images when it was begun, in words; empty if nothing is known."""
    scan = _read(Path(folder) / MEMORY).get("scan")
    return {str(k): str(v) for k, v in scan.items()} if isinstance(scan, dict) else {}


def read_division(folder: str | Path) -> Division | None:
    """Which images a run held out; None if it has no such file."""
    lists = _read(Path(folder) / HELD_OUT)
    try:
        return Division(tuple(lists["train"]), tuple(lists["held_out"])) if lists else None
    except (KeyError, TypeError) as error:
        raise BadInput(f"{Path(folder) / HELD_OUT} is damaged: it has no {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """The content of a sealed file of the run folder; empty if there is none."""
    return read_sealed(path) if path.exists() or path.is_symlink() else {}


def _digest(division: Division) -> str:
    lists = (sorted(division.train), sorted(division.held_out))
    return hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:16]


def _times(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))
