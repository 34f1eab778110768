"""Images in: `load_images` takes a name, a path, an array or a data set and gives `Images`.

Whatever the source, a batch is float32 `(B, C, H, W)` in [-1, 1]; a byte v becomes v / 127.5 - 1.
Arrays stay in memory as they are (an .npy file stays on disk), picture files are decoded when a
batch needs them and kept if the whole set is small, so data larger than memory streams.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.data import catalog, items, sources
from damc.data.pixels import Reading
from damc.data.scan import Scan
from damc.data.shaping import Loaded, Shaping
from damc.data.stores import Store
from damc.errors import BadInput

__all__ = ["Images", "heldout_split", "load_images"]


class Images:
    """N images of one shape, in memory or read from disk when asked for.

    Made by `load_images`.

    Attributes:
        name: what the images are, in a word.
        shape: (C, H, W) of every image.
        labels: int64 `(N,)`, or None.
        note: what was assumed or left out while loading, in words; often empty.
        scan: what was found while loading, or None.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        labels: Tensor | None = None,
        note: str = "",
        rows: NDArray[np.int64] | None = None,
        scan: Scan | None = None,
    ) -> None:
        self.scan = scan
        self.name = name
        self.shape = store.shape
        self.labels = labels
        self.note = note
        self._store = store
        self._rows = np.arange(len(store)) if rows is None else rows
        self._digest: str | None = None
        if labels is not None and labels.shape != (len(self),):
            raise BadInput(
                f"{name} has {len(self)} images and labels of shape {tuple(labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        note = f", {self.note}" if self.note else ""
        return f"Images({self.name}: {len(self):,} of {self.shape}{note})"

    def batch(self, index: Tensor) -> Tensor:
        """The images with these numbers, `(B,)`, as float32 `(B, C, H, W)` in [-1, 1]."""
        wanted = self._check(index)
        pixels = torch.from_numpy(self._store.read(self._rows[wanted]))
        return pixels.float().div_(127.5).sub_(1) if pixels.dtype == torch.uint8 else pixels

    def subset(self, index: Tensor | Sequence[int] | NDArray[Any] | slice) -> Images:
        """The images with these numbers, or where a mask is true, as a view: no pixel is copied."""
        every = np.arange(len(self))
        if isinstance(index, slice):
            wanted = every[index]
        else:
            given = np.asarray(index)
            if given.dtype == np.bool_ and given.shape == (len(self),):
                given = every[given]
            wanted = self._check(torch.from_numpy(given.astype(np.int64)))
        labels = None if self.labels is None else self.labels[torch.from_numpy(wanted)]
        return Images(
            self._store,
            name=self.name,
            labels=labels,
            note=self.note,
            rows=self._rows[wanted],
            scan=self.scan,
        )

    def digest(self) -> str:
        """16 hex digits of the SHA-256 of the pixels, in order; labels and names do not count.

        Every image is read once, so for a large folder this takes as long as decoding it.
        """
        if self._digest is None:
            digest = hashlib.sha256(f"{len(self)}, {self.shape}".encode())
            for start in range(0, len(self), 256):
                pixels = self._store.read(self._rows[start : start + 256])
                digest.update(str(pixels.dtype).encode())
                digest.update(np.ascontiguousarray(pixels).tobytes())
            self._digest = digest.hexdigest()[:16]
        return self._digest

    def hashes(self) -> list[str]:
        """16 hex digits of the SHA-256 of every image as it was given: of a picture its file, of an
        array its pixels. They do not depend on the size that images are brought to."""
        return [self._store.content(int(row)) for row in self._rows]

    def _check(self, index: Tensor) -> NDArray[np.int64]:
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise BadInput(f"index must be int64 (B,), got {index.dtype} {tuple(index.shape)}")
        wanted: NDArray[np.int64] = index.detach().cpu().numpy().astype(np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise BadInput(
                f"index into {self.name} must be 0 to {len(self) - 1}, "
                f"got {wanted.min()} to {wanted.max()}"
            )
        return wanted


def load_images(
    source: Any,
    *,
    root: str | Path | None = None,
    split: str = "train",
    size: int | tuple[int, int] | Literal["auto"] | None = None,
    crop: int | None = None,
    channels: int | None = None,
    background: str = "white",
    value_range: tuple[float, float] | None = None,
    skip_corrupt: bool = False,
    reading: Reading | None = None,
) -> Images:
    """Load images from nearly anything.

    Args:
        source: the name of a data set (see `damc.data.catalog`), `hub:owner/name` for the
            Hugging Face Hub, a path to a folder of pictures, to a CSV file of paths (see
            `damc.data.listing`) or to a raw file (see `damc.data.formats`), a NumPy
            array or tensor `(N, H, W)`, `(N, H, W, C)` or `(N, C, H, W)`, a list of Pillow images,
            or a map-style torch data set whose items are `x` or `(x, y)`.
        root: the folder below which named data sets are looked for; else the variable DAMC_DATA
            names it, else it is `./data`.
        split: `train`, `test` or `all`; a folder may have others. What is not divided into splits
            is given whole as `train` or `all`, and has no `test`.
        size: (height, width), or the side of a square: cut the largest part of that aspect from
            the center of every image and resize it (Lanczos). Picture files of different sizes
            need it; "auto" chooses one for them and keeps images of one size as they are, up to
            512 pixels.
        crop: cut out a center square of so many pixels first.
        channels: 1 or 3; the default is what the first image has.
        background: what lies under transparent pixels, white or black.
        value_range: the values of an array that are black and white, where they are not 0 and 255
            of uint8, 0 or -1 and 1 of floats.
        skip_corrupt: leave out picture files that cannot be read; `Images.scan` lists them.
        reading: all choices of reading at once, instead of the three before.
    """
    if channels not in (None, 1, 3):
        raise BadInput(f"channels must be 1 or 3, got {channels}")
    sides = [crop] if size is None or size == "auto" else [crop, *np.atleast_1d(np.array(size))]
    if any(side is not None and side < 1 for side in sides) or len(sides) > 3:
        raise BadInput(f"size and crop must be positive numbers of pixels, got {size} and {crop}")
    if reading is None:
        reading = Reading(background, value_range, skip_corrupt=skip_corrupt)
    shaping = Shaping(size, crop, channels, reading)
    store, name, labels, note, scan = _load(source, root, split, shaping)
    return Images(store, name=name, labels=labels, note=note, scan=scan)


def heldout_split(images: Images, digit: int, train: bool) -> Images:
    """The anomaly protocol of Zenati et al. (2018): learn all classes but one, then find that one.

    Normals are the images of every other class, permuted by NumPy's RandomState(42). The first
    int(0.8 N) are for training; the test set is the other normals and every image of `digit`,
    permuted. Each call seeds the generator again, so training and test images are disjoint.
    For the published protocol, `images` is `load_images("mnist", split="all")`, whose order (50,000
    training images, the test images, the other training images) is part of it.

    Args:
        images: labeled images.
        digit: the class held out.
        train: give the training set, else the test set; there, an anomaly is `labels == digit`.
    """
    if images.labels is None:
        raise BadInput(f"{images.name} has no labels, so no class can be held out")
    labels = images.labels.numpy()
    normal, anomalous = np.flatnonzero(labels != digit), np.flatnonzero(labels == digit)
    if not len(anomalous) or len(normal) < 2:
        raise BadInput(
            f"{images.name} has {len(anomalous)} images of class {digit} and {len(normal)} others: "
            f"its classes are {sorted(set(labels.tolist()))}."
        )
    rng = np.random.RandomState(42)
    normal = normal[rng.permutation(len(normal))]
    cut = int(0.8 * len(normal))
    if train:
        return images.subset(normal[:cut])
    test = np.concatenate([normal[cut:], anomalous])
    return images.subset(test[rng.permutation(len(test))])


def _load(source: Any, root: str | Path | None, split: str, shaping: Shaping) -> Loaded:
    if isinstance(source, Path):
        return sources.from_path(source, split, shaping)
    if isinstance(source, str):
        if source.startswith("hub:"):
            return items.from_hub(source, split, shaping)
        if source in catalog.CATALOG:
            return sources.from_found(catalog.find(source, root, split), source, shaping)
        path = Path(source).expanduser()
        if path.exists() or "/" in source or path.suffix:
            return sources.from_path(path, split, shaping)
        raise BadInput(
            f"{source!r} is neither a known data set nor a file{catalog.suggest(source)}"
        )
    sources.check_undivided(split, f"the {type(source).__name__} given")
    if isinstance(source, Tensor):
        held = source.detach().cpu()
        array = (held.float() if held.is_floating_point() else held).numpy()
        return sources.from_array(array, None, "tensor", "", shaping)
    if isinstance(source, np.ndarray):
        return sources.from_array(source, None, "array", "", shaping)
    if isinstance(source, list) and source and all(isinstance(x, str | Path) for x in source):
        return sources.from_files([Path(x) for x in source], "list", "", shaping)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return items.from_items(source, type(source).__name__, shaping)
    raise BadInput(
        f"images cannot be loaded from a {type(source).__name__}: give a name, a path, an array, "
        "a list of pictures or a data set with __len__ and __getitem__ (batches go in a Stream)"
    )
