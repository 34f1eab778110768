"""Images in: embedded sets, raw files, folders, arrays, Hub data sets."""

from __future__ import annotations

from damc.data.catalog import Description, describe
from damc.data.division import Division, divide
from damc.data.images import Images, heldout_split, load_images
from damc.data.pixels import Reading
from damc.data.scan import Scan

__all__ = [
    "Description",
    "Division",
    "Images",
    "Reading",
    "Scan",
    "describe",
    "divide",
    "heldout_split",
    "load_images",
]
