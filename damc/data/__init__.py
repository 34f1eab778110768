"""Images in: embedded sets, raw files, folders, arrays, Hub data sets, and batches of them."""

from __future__ import annotations

from damc.data.catalogue import Description, describe
from damc.data.feed import Stream, batches
from damc.data.images import Images, heldout_split, load_images

__all__ = [
    "Description",
    "Images",
    "Stream",
    "batches",
    "describe",
    "heldout_split",
    "load_images",
]
