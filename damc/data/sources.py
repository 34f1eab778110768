"""The kinds of source that images come from, each made into a store of pixels.

A store is an array, or a function that makes pictures one by one; `read` gives a few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.data import catalog, formats, pictures
from damc.errors import BadInput

__all__ = [
    "ArrayStore",
    "ItemStore",
    "Loaded",
    "Shaping",
    "Store",
    "check_undivided",
    "from_array",
    "from_files",
    "from_found",
    "from_hub",
    "from_items",
    "from_path",
]

# A set of decoded pictures up to this size is kept in memory.
KEPT_BYTES = 256 * 2**20


class Store(Protocol):
    """Where pixels come from: `read` gives uint8, or float32 in [-1, 1], `(B, C, H, W)`."""

    shape: tuple[int, int, int]

    def __len__(self) -> int: ...

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]: ...


class ArrayStore:
    """An array `(N, C, H, W)` in memory or memory-mapped, uint8 or floats in [low, 1]."""

    def __init__(self, array: NDArray[Any], low: float) -> None:
        _, channels, height, width = array.shape
        self.shape = (channels, height, width)
        self._array, self._low = array, low

    def __len__(self) -> int:
        return len(self._array)

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        pixels = np.ascontiguousarray(self._array[rows])
        if pixels.dtype == np.uint8:
            return pixels
        pixels = pixels.astype(np.float32)
        return pixels if self._low < 0 else pixels * np.float32(2) - np.float32(1)


class ItemStore:
    """Pictures made one by one by `fetch(i)`, `(C, H, W)`; kept in memory if they are few."""

    def __init__(
        self,
        fetch: Callable[[int], NDArray[Any]],
        count: int,
        called: Callable[[int], str],
        *,
        keep: bool,
    ) -> None:
        first = fetch(0)
        channels, height, width = first.shape
        self.shape = (channels, height, width)
        self._fetch, self._count, self._called = fetch, count, called
        self._dtype = first.dtype
        self._kept = keep and count * first.nbytes <= KEPT_BYTES
        self._pixels = np.empty((count if self._kept else 0, *self.shape), dtype=first.dtype)
        self._have = np.zeros(count, dtype=bool)

    def __len__(self) -> int:
        return self._count

    def read(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        if self._kept:
            for i in np.unique(rows[~self._have[rows]]):
                self._pixels[i] = self._item(int(i))
                self._have[i] = True
            return self._pixels[rows]
        out = np.empty((len(rows), *self.shape), dtype=self._dtype)
        for row, i in enumerate(rows):
            out[row] = self._item(int(i))
        return out

    def _item(self, i: int) -> NDArray[Any]:
        item = self._fetch(i)
        if item.shape != self.shape or item.dtype != self._dtype:
            raise BadInput(
                f"{self._called(i)} is {item.dtype} {item.shape} but {self._called(0)} is "
                f"{self._dtype} {self.shape}: give size= and channels= to make them alike."
            )
        return item


class Loaded(NamedTuple):
    """A source made ready: its pixels, its name, its labels `(N,)` and what to say about it."""

    store: Store
    name: str
    labels: Tensor | None
    note: str


class Shaping(TypedDict):
    """What `pictures.fit` is to do with every picture."""

    size: int | None
    crop: int | None
    channels: int | None


def from_path(path: Path, split: str, shaping: Shaping) -> Loaded:
    """A folder of pictures, one picture, or a raw file."""
    if path.is_dir():
        folder, divided = pictures.split_folder(path, split)
        if folder is None:
            here = [name for name in pictures.SPLIT_FOLDERS if (path / name).is_dir()]
            raise BadInput(f"{path} has no sub-folder {split!r}, only {', '.join(here)}.")
        if not divided:
            check_undivided(split, f"{path}, without sub-folders train and test,")
        paths = pictures.list_pictures(folder)
        if not paths:
            suffixes = ", ".join(pictures.PICTURE_SUFFIXES)
            raise BadInput(f"{folder} holds no pictures, wanted files that end in {suffixes}.")
        return from_files(paths, path.name, "", shaping)
    if not path.exists():
        raise BadInput(f"{path} does not exist, wanted a file or a folder of images.")
    check_undivided(split, str(path))
    if path.suffix.lower() in pictures.PICTURE_SUFFIXES:
        return from_files([path], path.name, "", shaping)
    images, labels = formats.read_raw(path)
    return from_array(images, labels, str(path), "", shaping)


def from_found(found: catalog.Found, name: str, shaping: Shaping) -> Loaded:
    """A data set of the catalog; its own size and crop hold unless others are asked for."""
    if not isinstance(found.images, list):
        return from_array(found.images, found.labels, name, found.note, shaping)
    note = found.note if shaping["crop"] is None else ""
    shaping["size"] = shaping["size"] or found.size
    shaping["crop"] = shaping["crop"] or found.crop
    return from_files(found.images, name, note, shaping)


def from_array(
    array: NDArray[Any], labels: NDArray[Any] | None, name: str, note: str, shaping: Shaping
) -> Loaded:
    """An array of images in any layout that `pictures.arrange` knows."""
    arranged = pictures.arrange(array, name)
    store: Store = ArrayStore(arranged.images, arranged.low)
    channels, height, width = store.shape
    as_it_is = (
        shaping["channels"] in (None, channels)
        and (shaping["crop"] is None or shaping["crop"] == height == width)
        and (shaping["size"] is None or shaping["size"] == height == width)
    )
    if not as_it_is:
        whole = store
        store = _shaped(
            lambda i: _one(whole, i),
            len(whole),
            lambda i: f"image {i} of {name}",
            shaping,
            keep=True,
        )
    return Loaded(
        store,
        Path(name).name,
        None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        "; ".join(part for part in (note, arranged.note) if part),
    )


def from_files(paths: list[Path], name: str, note: str, shaping: Shaping) -> Loaded:
    """Picture files, decoded when asked for."""
    if shaping["size"] is None and shaping["crop"] is None:
        pictures.check_one_size(paths)
    store = _shaped(
        lambda i: pictures.decode(paths[i]), len(paths), lambda i: str(paths[i]), shaping, keep=True
    )
    return Loaded(store, name, None, note)


def from_items(items: Any, name: str, shaping: Shaping, labels: Tensor | None = None) -> Loaded:
    """A list of pictures, or a map-style data set whose items are `x` or `(x, y)`."""
    count = len(items)
    if not count:
        raise BadInput(f"the {name} given is empty, wanted images.")
    # Floats in [0, 1] and in [-1, 1] look alike in one dark picture, so several are asked.
    probes = sorted({int(i) for i in np.linspace(0, count - 1, min(count, 64))})
    arranged = [_item(items[i], f"item {i} of {name}") for i in probes]
    low = min(probe.low for probe in arranged)

    def fetch(i: int) -> NDArray[Any]:
        image, own_low, _ = _item(items[i], f"item {i} of {name}")
        if own_low < low:
            raise BadInput(
                f"item {i} of {name} has negative values, but {len(probes)} others lie in [0, 1]: "
                "give all as floats in [-1, 1], or all in [0, 1], or as uint8."
            )
        return _one(ArrayStore(image, low), 0)

    # A data set may make another picture each time it is asked (augmentation), a list does not.
    keep = isinstance(items, list)
    store = _shaped(fetch, count, lambda i: f"item {i} of {name}", shaping, keep=keep)
    floats = any(probe.images.dtype.kind == "f" for probe in arranged)
    note = f"floats taken as [{low:.0f}, 1]" if floats else ""
    return Loaded(store, name, _labels_of(items) if labels is None else labels, note)


def from_hub(source: str, split: str, shaping: Shaping) -> Loaded:
    """A data set of the Hugging Face Hub, `hub:owner/name`, with a column `image` or `img`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise BadInput(f"{source} needs the extra hub: pip install 'damc[hub]'.") from error
    try:
        held = load_dataset(
            source.removeprefix("hub:"), split="train+test" if split == "all" else split
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{source} cannot be loaded: {' '.join(str(error).split())}") from error
    column = next((name for name in ("image", "img") if name in held.column_names), None)
    if column is None:
        raise BadInput(f"{source} has columns {held.column_names}, wanted one named image or img.")
    labels = None
    if "label" in held.column_names:
        labels = torch.tensor(list(held["label"]), dtype=torch.int64)
    return from_items(_Column(held, column), source, shaping, labels)


class _Column:
    """One column of a Hub data set; a picture is decoded when it is asked for."""

    def __init__(self, held: Any, column: str) -> None:
        self._held, self._column = held, column

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, i: int) -> Any:
        return self._held[i][self._column]


def _shaped(
    fetch: Callable[[int], NDArray[Any]],
    count: int,
    called: Callable[[int], str],
    shaping: Shaping,
    *,
    keep: bool,
) -> ItemStore:
    # A grayscale picture among color ones is repeated; a color one among grayscale is refused,
    # for which of the two is wanted only the user knows.
    channels = shaping["channels"] or (3 if fetch(0).shape[0] == 3 else None)

    def shaped(i: int) -> NDArray[Any]:
        return pictures.fit(
            fetch(i), called(i), crop=shaping["crop"], size=shaping["size"], channels=channels
        )

    return ItemStore(shaped, count, called, keep=keep)


def _one(store: Store, i: int) -> NDArray[Any]:
    pixels: NDArray[Any] = store.read(np.array([i]))[0]
    return pixels


def _item(item: Any, what: str) -> pictures.Arranged:
    x: Any = item[0] if isinstance(item, (tuple, list)) and item else item
    if isinstance(x, (str, Path)):
        return pictures.Arranged(pictures.decode(Path(x))[None], 0.0, "")
    if hasattr(x, "convert") and hasattr(x, "mode"):
        return pictures.Arranged(pictures.from_pil(x, what)[None], 0.0, "")
    if isinstance(x, Tensor):
        x = (x.detach().float() if x.is_floating_point() else x).cpu().numpy()
    shape = tuple(getattr(x, "shape", ()))
    if not isinstance(x, np.ndarray) or len(shape) not in (2, 3):
        raise BadInput(
            f"{what} is a {type(x).__name__} of shape {shape}, wanted one picture: a tensor or "
            "array (C, H, W), (H, W, C) or (H, W), or a Pillow image."
        )
    return pictures.arrange(x[None], what)


def _labels_of(source: Any) -> Tensor | None:
    """The labels of a data set, where they can be had without decoding its pictures."""
    held = getattr(source, "targets", None)
    if held is None:
        held = getattr(source, "labels", None)
    tensors: Any = getattr(source, "tensors", ())
    if held is None and len(tensors) > 1:
        held = tensors[1]
    if held is None and isinstance(source, list):
        pairs = [item for item in source if isinstance(item, (tuple, list)) and len(item) == 2]
        held = [item[1] for item in pairs] if len(pairs) == len(source) else None
    if held is None:
        return None
    labels = np.asarray(held)
    whole = labels.dtype.kind in "biu" and labels.shape == (len(source),)
    return torch.from_numpy(labels.astype(np.int64)) if whole else None


def check_undivided(split: str, what: str) -> None:
    """Refuse a test split of what has none: it would be the images that were trained on."""
    if split not in ("train", "all"):
        raise BadInput(
            f"{what} has no split {split!r}: give those images as a source of their own."
        )
