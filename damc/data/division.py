"""Images held out of training, chosen by their content: the same whatever their names and order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from damc.errors import BadInput

if TYPE_CHECKING:
    from damc.data.images import Images

__all__ = ["Division", "divide"]


@dataclass(frozen=True)
class Division:
    """Content hashes of the images that are learned from, and of those held out."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    @classmethod
    def choose(cls, hashes: Sequence[str], fraction: float) -> Division:
        """Hold out a fraction of the images: those with the smallest hashes.

        Images of equal content have equal hashes and stay together, so that no copy of a held-out
        image is learned from. At least one image is held out, and at least one is not.

        Args:
            hashes: of all images.
            fraction: the share to hold out, in (0, 1).
        """
        if not 0 < fraction < 1:
            raise BadInput(f"fraction must lie between 0 and 1, got {fraction:g}")
        copies = Counter(hashes)
        if len(copies) < 2:
            raise BadInput(
                f"images must be at least two different ones, to hold some out, got {len(copies)}"
            )
        wanted, chosen, count = max(1, round(fraction * len(hashes))), set[str](), 0
        for content in sorted(copies)[:-1]:
            if count >= wanted:
                break
            chosen.add(content)
            count += copies[content]
        return cls(
            tuple(content for content in hashes if content not in chosen),
            tuple(content for content in hashes if content in chosen),
        )

    def difference(self, hashes: Collection[str]) -> tuple[int, int]:
        """How many of these images are new, and how many of those divided are missing."""
        known, now = Counter(self.train + self.held_out), Counter(hashes)
        return (now - known).total(), (known - now).total()


def divide(images: Images, division: Division) -> tuple[Images, Images]:
    """The images to learn from and those held out, as views; others are in neither."""
    train, held_out = set(division.train), set(division.held_out)
    hashes = images.hashes()
    parts = [
        np.array([i for i, content in enumerate(hashes) if content in wanted], dtype=np.int64)
        for wanted in (train, held_out)
    ]
    return images.subset(parts[0]), images.subset(parts[1])
