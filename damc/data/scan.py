"""Picture files looked through before they are used: which can be read, what they hold, one size.

`scan` gives a `Scan`, whose `table` is the summary that `damc train` prints before its first
iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from damc.data import pictures
from damc.data.pixels import Reading, used_bits
from damc.errors import BadInput

__all__ = ["LARGEST", "SMALLEST", "Scan", "common_size", "scan_pictures"]

SMALLEST, LARGEST = 8, 512
"""Sides of images, in pixels, that networks are sized for."""

MIXED_LARGEST = 128  # of a size that is chosen for pictures of different sizes


@dataclass(frozen=True)
class Scan:
    """What was found in a source of images.

    Attributes:
        what: the pictures, in a word: "pictures", "images".
        count: how many can be used.
        skipped: what cannot be read, and why, by name.
        converted: how many were changed, by what was done to them.
        sizes: how many have a size, by (width, height) as they are meant to be seen.
        channels: how many are "gray" and "color".
        bits: how many have a depth, by its description.
        depths: bits that files of 16 use, by format.
        fitted: what is done to bring them to one size, in words; empty if nothing is.
    """

    what: str
    count: int
    skipped: Mapping[str, str] = field(default_factory=dict)
    converted: Mapping[str, int] = field(default_factory=dict)
    sizes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)
    depths: Mapping[str, int] = field(default_factory=dict)
    fitted: str = ""

    @property
    def color(self) -> int:
        """Channels that hold all of them: 1 if all are gray, else 3."""
        return 3 if self.channels.get("color") else 1

    @property
    def table(self) -> dict[str, str]:
        """The summary: what was read, skipped, converted; sizes, channels, bits."""
        total = self.count + len(self.skipped)
        rows = {"read": f"{self.count:,} of {total:,} {self.what}"}
        if self.skipped:
            shown = [f"{name} ({why})" for name, why in list(self.skipped.items())[:5]]
            more = f" and {len(self.skipped) - 5:,} more" if len(self.skipped) > 5 else ""
            rows["skipped"] = f"{len(self.skipped):,}: {', '.join(shown)}{more}"
        rows["converted"] = _counted(self.converted) or "none"
        rows["sizes"] = _sizes(self.sizes) + (f"; {self.fitted}" if self.fitted else "")
        rows["channels"] = _counted(self.channels) + (
            "; gray ones repeated" if len(self.channels) > 1 else ""
        )
        rows["bits"] = _counted(self.bits)
        return rows

    def multiplied(self, count: int) -> Scan:
        """The scan of `count` pictures that are all like the one scanned."""
        return replace(
            self,
            count=count,
            converted=dict.fromkeys(self.converted, count),
            sizes=dict.fromkeys(self.sizes, count),
            channels=dict.fromkeys(self.channels, count),
            bits=dict.fromkeys(self.bits, count),
        )

    def fit(self, size: tuple[int, int] | None) -> Scan:
        """The same, with what is done to the sizes: `size` is (height, width), or None."""
        if size is None or set(self.sizes) == {(size[1], size[0])}:
            return self
        return replace(self, fitted=f"cut at the center and resized to {size[1]}x{size[0]}")


def scan_pictures(
    paths: Sequence[Path], reading: Reading, *, progress: bool = False
) -> tuple[Sequence[Path], Scan]:
    """Look through picture files; give those that can be read, and what was found.

    Files of more than 8 bits are always decoded, to see how many bits they use; the others only if
    `reading.check` or `reading.skip_corrupt` asks for it, else their headers are read.

    Raises:
        BadInput: if a file cannot be read and is not to be skipped, before anything is used.
    """
    from tqdm import tqdm

    kinds: Counter[tuple[Any, ...]] = Counter()
    changes: Counter[str] = Counter()
    tops: dict[str, int] = {}  # the largest value of 16 bits, by format
    skipped: dict[str, str] = {}
    deep = bool(reading.check or reading.skip_corrupt)
    for path in tqdm(paths, desc="look", disable=not progress, dynamic_ncols=True, leave=False):
        try:
            fact = pictures.survey(path, reading.background, decode=deep)
        except BadInput as error:
            skipped[str(path)] = str(error).removeprefix(f"{path} ").removeprefix("is ")
            if not deep:
                raise
            continue
        # Counted, not kept: there may be very many.
        kind, top = fact["format"], fact["top"]
        kinds[fact["size"], fact["channels"], fact["stored"], None if top is None else kind] += 1
        changes.update(fact["changes"])
        if top is not None:
            tops[kind] = max(top, tops.get(kind, 0))
    if skipped and not reading.skip_corrupt:
        name, why = next(iter(skipped.items()))
        many = f"{len(skipped)} of {len(paths)} pictures cannot be read, the first is"
        raise BadInput(
            f"{many if len(skipped) > 1 else 'one picture cannot be read,'} {name} ({why}): mend "
            "or remove it, or leave it out with --skip-corrupt (skip_corrupt=True in Python)"
        )
    count = kinds.total()
    if not count:
        raise BadInput(f"none of {len(paths)} pictures can be read, the first is {paths[0]}")
    depths = {kind: used_bits(top) for kind, top in tops.items()} | dict(reading.bits)
    sizes: Counter[tuple[int, int]] = Counter()
    channels: Counter[str] = Counter()
    bits: Counter[str] = Counter()
    for (size, color, stored, kind), n in kinds.items():
        sizes[size] += n
        channels["color" if color == 3 else "gray"] += n
        bits[_depth(stored, kind, depths)] += n
    scan = Scan("pictures", count, skipped, changes, sizes, channels, bits, depths)
    return [path for path in paths if str(path) not in skipped] if skipped else paths, scan


def common_size(sizes: Mapping[tuple[int, int], int]) -> tuple[int, int]:
    """The (height, width) that pictures of the given (width, height) are brought to.

    One size stays as it is, but for sides above 512 pixels, which are made smaller. Of several
    sizes, the short side is one that nine tenths of the pictures reach, 128 at most, so that few
    are enlarged; the aspect is the common one where half of the pictures are within a tenth of it,
    else the square.
    """
    if len(sizes) == 1:
        ((width, height),) = sizes
        scale = min(1.0, LARGEST / max(width, height))
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
    else:
        all_sizes = np.repeat(list(sizes), list(sizes.values()), axis=0).astype(float)
        short = float(np.quantile(all_sizes.min(1), 0.1, method="lower"))
        aspect = float(np.median(np.log(all_sizes[:, 0] / all_sizes[:, 1])))
        near = np.abs(np.log(all_sizes[:, 0] / all_sizes[:, 1]) - aspect) < np.log(1.1)
        aspect = float(np.exp(aspect)) if near.mean() >= 0.5 else 1.0
        short = min(short, MIXED_LARGEST / max(aspect, 1 / aspect, 1.0))
        high, wide = short * max(1.0, 1 / aspect), short * max(1.0, aspect)
        # Multiples of 4 suit networks that make maps four times larger.
        size = (max(SMALLEST, round(high / 4) * 4), max(SMALLEST, round(wide / 4) * 4))
    if min(size) < SMALLEST:
        raise BadInput(
            f"images must have sides of {SMALLEST} pixels or more, got {size[1]}x{size[0]}"
        )
    return size


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in counts.items())


def _sizes(sizes: Mapping[tuple[int, int], int]) -> str:
    if len(sizes) == 1:
        return "all {}x{}".format(*next(iter(sizes)))
    (w0, h0), (w1, h1) = (pick(sizes, key=lambda s: s[0] * s[1]) for pick in (min, max))
    return f"{len(sizes):,} sizes, {w0}x{h0} to {w1}x{h1}"


def _depth(stored: int, kind: str | None, depths: Mapping[str, int]) -> str:
    """In words; `kind` is the format of a file of 16 bits."""
    if kind is None:
        return f"of {stored} bits"
    return f"of 16 bits ({kind}), {depths[kind]} used: 0 to {2 ** depths[kind] - 1:,} span [-1, 1]"
