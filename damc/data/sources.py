"""The kinds of source that images come from, each made into a store of pixels.

`damc.data.stores` has the two kinds of store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.data import arrays, catalog, formats, listing, pictures
from damc.data.pixels import Reading, pixels_of, scaled, used_bits
from damc.data.scan import Scan, common_size, scan_pictures
from damc.data.stores import ArrayStore, ItemStore, Store, content_hash
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


class Loaded(NamedTuple):
    """A source made ready: its pixels, its name, its labels `(N,)`, what to say about it."""

    store: Store
    name: str
    labels: Tensor | None
    note: str
    scan: Scan


@dataclass(frozen=True)
class Shaping:
    """What is done with every picture: how it is read, and what `pictures.fit` is to do.

    A size is (height, width) or the side of a square; "auto" is `scan.common_size`.
    """

    size: int | tuple[int, int] | str | None = None
    crop: int | None = None
    channels: int | None = None
    reading: Reading = field(default_factory=Reading)

    def settled(self, scan: Scan) -> Shaping:
        """With "auto" made into a size, and the channels that hold every picture."""
        if self.size != "auto":
            return self
        return replace(self, size=common_size(scan.sizes), channels=self.channels or scan.color)

    @property
    def sides(self) -> tuple[int, int] | None:
        """The size as (height, width), if there is one."""
        assert not isinstance(self.size, str)
        return (self.size, self.size) if isinstance(self.size, int) else self.size


def from_path(path: Path, split: str, shaping: Shaping) -> Loaded:
    """A folder of pictures, one picture, a CSV file of paths, or a raw file."""
    if path.is_dir():
        folder, divided = pictures.split_folder(path, split)
        if folder is None:
            here = [name for name in pictures.SPLIT_FOLDERS if (path / name).is_dir()]
            raise BadInput(f"{path} has no sub-folder {split!r}, only {', '.join(here)}")
        if not divided:
            check_undivided(split, f"{path}, without sub-folders train and test,")
        paths = pictures.list_pictures(folder)
        if not paths:
            suffixes = ", ".join(pictures.PICTURE_SUFFIXES)
            raise BadInput(f"{folder} contains no pictures: files must end in {suffixes}")
        return from_files(paths, path.name, "", shaping)
    if not path.exists():
        raise BadInput(f"{path} does not exist: give a file or a folder of images")
    if path.suffix.lower() == ".csv":
        listed = listing.read_listing(path, split)
        if not listed.divided:
            check_undivided(split, f"{path}, without a column split,")
        return from_files(listed.paths, path.name, "", shaping, listed.labels)
    check_undivided(split, str(path))
    if path.suffix.lower() in pictures.PICTURE_SUFFIXES:
        return from_files([path], path.name, "", shaping)
    images, labels = formats.read_raw(path)
    return from_array(images, labels, str(path), "", shaping)


def from_found(found: catalog.Found, name: str, shaping: Shaping) -> Loaded:
    """A data set of the catalog; its own size and crop hold unless others are asked for."""
    if not isinstance(found.images, list):
        return from_array(found.images, found.labels, name, found.note, shaping)
    note = found.note if shaping.crop is None else ""
    size = found.size if shaping.size in (None, "auto") else shaping.size
    fitted = replace(shaping, size=size or shaping.size, crop=shaping.crop or found.crop)
    return from_files(found.images, name, note, fitted)


def from_array(
    array: NDArray[Any], labels: NDArray[Any] | None, name: str, note: str, shaping: Shaping
) -> Loaded:
    """An array of images in any layout that `arrays.arrange` knows."""
    arranged = arrays.arrange(array, name, shaping.reading.value_range)
    store: Store = ArrayStore(arranged.images, arranged.low, arranged.high)
    scan = _array_scan(arranged, store)
    shaping = shaping.settled(scan)
    channels, height, width = store.shape
    as_it_is = (
        shaping.channels in (None, channels)
        and (shaping.crop is None or shaping.crop == height == width)
        and shaping.sides in (None, (height, width))
    )
    if not as_it_is:
        whole = store
        store = _shaped(
            lambda i: _one(whole, i),
            len(whole),
            lambda i: f"image {i} of {name}",
            shaping,
            keep=True,
            content=whole.content,
        )
    return Loaded(
        store,
        Path(name).name,
        None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        "; ".join(part for part in (note, arranged.note) if part),
        scan.fit(shaping.sides),
    )


def from_files(
    paths: list[Path],
    name: str,
    note: str,
    shaping: Shaping,
    labels: NDArray[np.int64] | None = None,
) -> Loaded:
    """Picture files, looked through first and decoded when asked for."""
    show = shaping.reading.check and sys.stderr.isatty()
    good, scan = scan_pictures(paths, shaping.reading, progress=show)
    if labels is not None and len(good) < len(paths):
        kept = set(good)
        labels = labels[[path in kept for path in paths]]
    shaping = shaping.settled(scan)
    if shaping.size is None and shaping.crop is None and len(scan.sizes) > 1:
        first, other = (
            next(path for path in good if pictures.size_of(path) == size)
            for size in list(scan.sizes)[:2]
        )
        sizes = ["{}x{}".format(*size) for size in scan.sizes]
        raise BadInput(
            f"the pictures differ in size, {first} is {sizes[0]} and {other} is {sizes[1]}: give a "
            'size, or "auto" to choose one, and all are cropped and resized to it'
        )
    # Where any picture has more than 8 bits, all are floats.
    deep = any(not depth.startswith("of 8") for depth in scan.bits)
    reading = replace(shaping.reading, bits=scan.depths)

    def fetch(i: int) -> NDArray[Any]:
        image = pictures.decode(good[i], reading)
        if deep and image.dtype == np.uint8:
            return image.astype(np.float32) / np.float32(127.5) - np.float32(1)
        return image

    store = _shaped(
        fetch,
        len(good),
        lambda i: str(good[i]),
        shaping,
        keep=True,
        content=lambda i: content_hash(good[i].read_bytes()),
    )
    noted = [note, *(depth for depth in scan.bits if not depth.startswith("of 8"))]
    return Loaded(
        store,
        name,
        None if labels is None else torch.from_numpy(labels),
        "; ".join(part for part in noted if part),
        scan.fit(shaping.sides),
    )


def from_items(items: Any, name: str, shaping: Shaping, labels: Tensor | None = None) -> Loaded:
    """A list of pictures, or a map-style data set whose items are `x` or `(x, y)`."""
    count = len(items)
    if not count:
        raise BadInput(f"the {name} given is empty")
    reading = shaping.reading
    # Floats in [0, 1] and in [-1, 1] look alike in one dark picture, so several are asked.
    probes = sorted({int(i) for i in np.linspace(0, count - 1, min(count, 64))})
    arranged = [_item(items[i], f"item {i} of {name}", reading) for i in probes]
    low, high = min(p.low for p in arranged), max(p.high for p in arranged)
    given = reading.value_range
    if given is None and all(p.images.dtype.kind == "u" and p.high == 255 for p in arranged):
        arrays.check_used(max(int(p.images.max()) for p in arranged), f"the {name} given")

    def fetch(i: int) -> NDArray[Any]:
        image, own_low, own_high, _ = _item(items[i], f"item {i} of {name}", reading)
        if own_low < low:
            raise BadInput(
                f"item {i} of {name} has negative values, but {len(probes)} others lie in [0, 1]: "
                "give all as floats in [-1, 1], or all in [0, 1], or as uint8"
            )
        if own_high > high:
            raise BadInput(
                f"item {i} of {name} has larger values than {len(probes)} others, which lie in "
                f"{low:g} to {high:g}: say which are black and white (value_range)"
            )
        return _one(ArrayStore(image, low, high), 0)

    # A data set may make another picture each time it is asked (augmentation), a list does not.
    keep = isinstance(items, list)
    scan = _item_scan(arranged, count)
    shaping = shaping.settled(scan)
    store = _shaped(fetch, count, lambda i: f"item {i} of {name}", shaping, keep=keep)
    noted = f"floats taken as [{low:.0f}, 1]" if high == 1 else ""
    if high not in (1, 255):
        noted = f"{low:g} to {high:g} span [-1, 1]"
    known = _labels_of(items) if labels is None else labels
    return Loaded(store, name, known, noted, scan.fit(shaping.sides))


def from_hub(source: str, split: str, shaping: Shaping) -> Loaded:
    """A data set of the Hugging Face Hub, `hub:owner/name`, with a column `image` or `img`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise BadInput(f"{source} needs the extra hub: pip install 'damc[hub]'") from error
    try:
        held = load_dataset(
            source.removeprefix("hub:"), split="train+test" if split == "all" else split
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{source} cannot be loaded: {' '.join(str(error).split())}") from error
    column = next((name for name in ("image", "img") if name in held.column_names), None)
    if column is None:
        raise BadInput(f"{source} must have a column image or img, got {held.column_names}")
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
    content: Callable[[int], str] | None = None,
) -> ItemStore:
    # A grayscale picture among color ones is repeated; a color one among grayscale is refused,
    # since only the user knows which of the two is right.
    channels = shaping.channels or (3 if fetch(0).shape[0] == 3 else None)
    size = shaping.sides

    def shaped(i: int) -> NDArray[Any]:
        return pictures.fit(fetch(i), called(i), crop=shaping.crop, size=size, channels=channels)

    return ItemStore(shaped, count, called, keep=keep, content=content)


def _one(store: Store, i: int) -> NDArray[Any]:
    pixels: NDArray[Any] = store.read(np.array([i]))[0]
    return pixels


def _item(item: Any, what: str, reading: Reading) -> arrays.Arranged:
    x: Any = item[0] if isinstance(item, (tuple, list)) and item else item
    if isinstance(x, (str, Path)):
        x = pictures.decode(Path(x), reading)
        return arrays.arrange(x[None], what, ask=False)
    if hasattr(x, "convert") and hasattr(x, "mode"):
        pixels = pixels_of(x, what, reading.background).array
        if pixels.dtype == np.uint16:
            pixels = scaled(pixels, None, what)
        return arrays.arrange(pixels[None], what, ask=False)
    if isinstance(x, Tensor):
        x = (x.detach().float() if x.is_floating_point() else x).cpu().numpy()
    shape = tuple(getattr(x, "shape", ()))
    if not isinstance(x, np.ndarray) or len(shape) not in (2, 3):
        raise BadInput(
            f"{what} must be a tensor or array (C, H, W), (H, W, C) or (H, W), or a Pillow image, "
            f"got a {type(x).__name__} of shape {shape}"
        )
    return arrays.arrange(x[None], what, reading.value_range, ask=False)


def _array_scan(arranged: arrays.Arranged, store: Store) -> Scan:
    channels, height, width = store.shape
    count, depth = len(store), _depth(arranged.images.dtype, arranged.low, arranged.high)
    kind = "color" if channels == 3 else "gray"
    return Scan(
        "images", count, sizes={(width, height): count}, channels={kind: count}, bits={depth: count}
    )


def _item_scan(arranged: list[arrays.Arranged], count: int) -> Scan:
    """What some of the items hold, counted as if all were like them."""
    sizes = {(p.images.shape[3], p.images.shape[2]): 1 for p in arranged}
    kinds = {"color" if p.images.shape[1] == 3 else "gray": 1 for p in arranged}
    depths = {_depth(p.images.dtype, p.low, p.high): 1 for p in arranged}
    known = [dict.fromkeys(found, count) if len(found) == 1 else found for found in (kinds, depths)]
    return Scan("images", count, sizes=sizes, channels=known[0], bits=known[1])


def _depth(dtype: Any, low: float, high: float) -> str:
    if dtype == np.uint8 and (low, high) == (0, 255):
        return "of 8 bits"
    used = f", {used_bits(int(high))} bits used" if dtype == np.uint16 and low == 0 else ""
    return f"of {dtype}{used}: {low:g} to {high:g} span [-1, 1]"


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
        raise BadInput(f"{what} has no split {split!r}: give those images as a source of their own")
