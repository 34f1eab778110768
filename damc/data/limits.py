"""How much a small file may become: pictures and archives are refused before they inflate.

    DAMC_MAX_PIXELS      pixels of one picture, 2**26 (8192 x 8192, 192 MiB of color) by default
    DAMC_MAX_INFLATION   bytes for each compressed byte of an archive, 100 by default; the first
                         64 MiB are free

Both are environment variables, for the rare file that is larger and trusted. Pillow has a limit of
its own, 178,956,970 pixels, which stays.
"""

from __future__ import annotations

__all__ = ["check_inflation", "check_pixels"]

import os
from pathlib import Path

from damc.errors import BadInput

MAX_PIXELS = 2**26
MAX_INFLATION = 100  # deflate reaches 1032:1 on zeros, real pictures stay below 20:1
FREE_BYTES = 64 * 2**20


def check_pixels(size: tuple[int, int], what: str | Path) -> None:
    """Refuses a picture by the size in its header, ``(width, height)``."""
    most = _setting("DAMC_MAX_PIXELS", MAX_PIXELS)
    if size[0] * size[1] > most:
        raise BadInput(
            f"{what} must have at most {most:,} pixels, which $DAMC_MAX_PIXELS changes, "
            f"got {size[0]}x{size[1]}"
        )


def check_inflation(path: str | Path, claimed: int, stored: int) -> None:
    """Refuses an archive that claims far more bytes than it has."""
    most = _setting("DAMC_MAX_INFLATION", MAX_INFLATION)
    if claimed > max(FREE_BYTES, most * stored):
        raise BadInput(
            f"{path} claims {claimed} bytes of content from {stored} compressed bytes, "
            f"more than {most} times as much, which $DAMC_MAX_INFLATION changes: it is not a file "
            "of real images"
        )


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name)
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"${name} must be a positive whole number, got {text!r}")
    return int(text)
