"""Images in: embedded sets, raw files, folders, arrays, Hub data sets."""

from __future__ import annotations

from damc.data.catalog import Description, describe
from damc.data.images import Images, heldout_split, load_images

__all__ = [
    "Description",
    "Images",
    "describe",
    "heldout_split",
    "load_images",
]
