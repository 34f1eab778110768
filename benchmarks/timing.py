"""Times of several things measured in turn, so that a slow moment of the machine hits all alike."""

from __future__ import annotations

__all__ = ["Times", "interleaved", "machine"]

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Times:
    """Seconds of one thing over all rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    def ratio(self, other: Times) -> tuple[float, float, float]:
        """How many times longer `other` took: median and quartiles of the rounds' ratios."""
        pairs = zip(other.seconds, self.seconds, strict=True)
        ratios = sorted(theirs / ours for theirs, ours in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4)
        return middle, low, high


def interleaved(things: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, Times]:
    """Runs everything once to warm up, then `rounds` times in turn."""
    for thing in things.values():
        thing()
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(rounds):
        for name, thing in things.items():
            start = time.perf_counter()
            thing()
            seconds[name].append(time.perf_counter() - start)
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }
