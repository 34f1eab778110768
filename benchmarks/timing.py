"""Times of several things measured in turn, so that a slow moment of the machine hits all alike."""

from __future__ import annotations

__all__ = ["Times", "compared", "count_flops", "gemm", "interleaved", "machine"]

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

GEMM_FLOPS = 2 * 1024**3


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
        if len(ratios) < 2:
            return ratios[0], ratios[0], ratios[0]
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


def compared(
    what: str,
    things: dict[str, Callable[[], Any]],
    rounds: int,
    flops: dict[str, int] | None = None,
) -> list[dict[str, Any]]:
    """One row for each thing: its time, how many times faster than the first, and its GFLOP/s.

    Args:
        what: said at the beginning of every row.
        things: what to time; the first is what the others are held against.
        rounds: how often.
        flops: counted operations of some of the things; their rate is given as a share of a large
            matrix product's, measured in the same rounds.
    """
    times = interleaved({**things, "": gemm()} if flops else things, rounds)
    reference = times[next(iter(things))]
    table = []
    for name in things:
        middle, low, high = times[name].ratio(reference)
        row = {
            "what": f"{what}: {name}",
            "seconds": round(times[name].median, 4),
            "times faster": round(middle, 2),
            "quartiles": [round(low, 2), round(high, 2)],
        }
        if flops is not None:
            count = flops.get(name, 0)
            share = times[name].ratio(times[""])[0] * count / GEMM_FLOPS
            row["GFLOP/s"] = round(count / times[name].median / 1e9) if count else ""
            row["share of GEMM peak"] = f"{share:.0%}" if count else ""
        table.append(row)
    return table


def gemm() -> Callable[[], torch.Tensor]:
    """A product of two 1,024 x 1,024 matrices: `GEMM_FLOPS` operations at the machine's best."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return lambda: a @ b


class _Flops(TorchDispatchMode):
    """Adds up the operations of products and convolutions, by torch's own formulas.

    torch's `FlopCounterMode` follows modules, too, and refuses gradients to inputs for that reason.
    """

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            with self:  # inference mode hands over whole operators: look inside
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        out = func(*args, **(kwargs or {}))
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


def count_flops(thing: Callable[[], Any]) -> int:
    """Floating-point operations of matrix products and convolutions in one call."""
    with _Flops() as counter:
        thing()
    return counter.total


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    if file.exists():
        for line in file.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
