"""Holds measured speed ratios against floors that were recorded when they were last looked at."""

from __future__ import annotations

__all__ = ["FLOORS", "below", "failures"]

import json
from pathlib import Path
from typing import Any

from benchmarks import iteration, parts, prior, sampling

FLOORS = Path(__file__).with_name("floors.json")
"""The smallest "times faster" allowed, by the row that it is read from."""


def failures() -> list[str]:
    """Measures every row that has a floor, prints it, and says what fell below its floor."""
    rows = (
        sampling.rows(rounds=7, batches=(64,))
        + prior.rows(rounds=15, batches=(128,))
        + parts.chains("mnist-small", batch=128, rounds=15, moves=10)
        + iteration.rows(("mnist-small", "svhn-small"), rounds=7)
        + iteration.rows(("svhn",), rounds=3)
    )
    floors = json.loads(FLOORS.read_text())
    for row in rows:
        if row["what"] in floors:
            print(f"{row['what']}: {row['times faster']} (floor {floors[row['what']]})")
    return below(rows, floors)


def below(rows: list[dict[str, Any]], floors: dict[str, float]) -> list[str]:
    """One sentence for each ratio whose upper quartile is still below its floor.

    The quartiles are the noise of this very run: on a busy machine they spread, and only a fall
    that they cannot explain fails.
    """
    measured = {row["what"]: row for row in rows}
    missing = [f"{what}: has a floor, but was not measured" for what in set(floors) - set(measured)]
    return missing + [
        f"{what}: {row['times faster']} times faster, quartiles {row['quartiles']}, "
        f"but the floor is {floors[what]}"
        for what, row in measured.items()
        if what in floors and row["quartiles"][1] < floors[what]
    ]
