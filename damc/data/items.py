"""Images that are given one by one: lists, map-style data sets, data sets of the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.data import arrays, pictures
from damc.data.pixels import Reading, pixels_of, scaled
from damc.data.scan import Scan
from damc.data.shaping import Loaded, Shaping, depth_of, shaped_store
from damc.data.stores import ArrayStore
from damc.errors import BadInput, NoSplit

__all__ = ["from_hub", "from_items"]


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
    asked = reading.ask and reading.value_range is None
    if asked and all(p.images.dtype.kind == "u" and p.high == 255 for p in arranged):
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
        return np.asarray(ArrayStore(image, low, high).read(np.array([0]))[0])

    # A data set may make another picture each time it is asked (augmentation), a list does not.
    keep = isinstance(items, list)
    scan = _item_scan(arranged, count)
    shaping = shaping.settled(scan)
    store = shaped_store(fetch, count, lambda i: f"item {i} of {name}", shaping, keep=keep)
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
        # The library says that it knows no such split by a ValueError.
        kind = NoSplit if isinstance(error, ValueError) and split == "test" else BadInput
        raise kind(f"{source} cannot be loaded: {' '.join(str(error).split())}") from error
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


def _item_scan(arranged: list[arrays.Arranged], count: int) -> Scan:
    """What some of the items hold, counted as if all were like them."""
    sizes = {(p.images.shape[3], p.images.shape[2]): 1 for p in arranged}
    kinds = {"color" if p.images.shape[1] == 3 else "gray": 1 for p in arranged}
    depths = {depth_of(p.images.dtype, p.low, p.high): 1 for p in arranged}
    known = [dict.fromkeys(found, count) if len(found) == 1 else found for found in (kinds, depths)]
    return Scan("images", count, sizes=sizes, channels=known[0], bits=known[1])


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
