"""Folders, files, arrays and named data sets, each made into a store of pixels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from damc.data import arrays, catalog, formats, listing, pictures
from damc.data.scan import Scan, scan_pictures
from damc.data.shaping import Loaded, Shaping, depth_of, shaped_store
from damc.data.stores import ArrayStore, Store, content_hash
from damc.errors import BadInput, NoSplit

__all__ = ["ArrayStore", "check_undivided", "from_array", "from_files", "from_found", "from_path"]


def from_path(path: Path, split: str, shaping: Shaping) -> Loaded:
    """A folder of pictures, one picture, a CSV file of paths, or a raw file."""
    if path.is_dir():
        folder, divided = pictures.split_folder(path, split)
        if folder is None:
            here = [name for name in pictures.SPLIT_FOLDERS if (path / name).is_dir()]
            raise NoSplit(f"{path} has no sub-folder {split!r}, only {', '.join(here)}")
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
    if isinstance(found.images, np.ndarray):
        return from_array(found.images, found.labels, name, found.note, shaping)
    note = found.note if shaping.crop is None else ""
    size = found.size if shaping.size in (None, "auto") else shaping.size
    fitted = replace(shaping, size=size or shaping.size, crop=shaping.crop or found.crop)
    look = fitted.reading.check or fitted.reading.skip_corrupt
    return from_files(found.images, name, note, fitted, look=look)


def from_array(
    array: NDArray[Any], labels: NDArray[Any] | None, name: str, note: str, shaping: Shaping
) -> Loaded:
    """An array of images in any layout that `arrays.arrange` knows."""
    reading = shaping.reading
    arranged = arrays.arrange(array, name, reading.value_range, ask=reading.ask)
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
        store = shaped_store(
            lambda i: whole.read(np.array([i]))[0],
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
    paths: Sequence[Path],
    name: str,
    note: str,
    shaping: Shaping,
    labels: NDArray[np.int64] | None = None,
    *,
    look: bool = True,
) -> Loaded:
    """Picture files, looked through first and decoded when asked for.

    Args:
        paths: the files.
        name: of all of them.
        note: what to say about them.
        shaping: what is done with each.
        labels: one for each file.
        look: False takes all to be like the first, which is quick for the hundreds of thousands of
            a published set.
    """
    show = shaping.reading.check and sys.stderr.isatty()
    good, scan = scan_pictures(paths if look else paths[:1], shaping.reading, progress=show)
    if not look:
        good, scan = paths, scan.multiplied(len(paths))
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
            f"pictures must be of one size, got {sizes[0]} ({first}) and {sizes[1]} ({other}): "
            "give --size or --resize (size= in Python), and all are cropped and resized to it"
        )
    # Where any picture has more than 8 bits, all are floats.
    deep = any(not depth.startswith("of 8") for depth in scan.bits)
    reading = replace(shaping.reading, bits=scan.depths)

    def fetch(i: int) -> NDArray[Any]:
        image = pictures.decode(good[i], reading)
        if deep and image.dtype == np.uint8:
            return image.astype(np.float32) / np.float32(127.5) - np.float32(1)
        return image

    store = shaped_store(
        fetch,
        len(good),
        lambda i: str(good[i]),
        shaping,
        keep=shaping.reading.keep,
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


def _array_scan(arranged: arrays.Arranged, store: Store) -> Scan:
    channels, height, width = store.shape
    count, depth = len(store), depth_of(arranged.images.dtype, arranged.low, arranged.high)
    kind = "color" if channels == 3 else "gray"
    return Scan(
        "images", count, sizes={(width, height): count}, channels={kind: count}, bits={depth: count}
    )


def check_undivided(split: str, what: str) -> None:
    """Refuse a test split of what has none: it would be the images that were trained on."""
    if split not in ("train", "all"):
        raise NoSplit(f"{what} has no split {split!r}: give those images as a source of their own")
