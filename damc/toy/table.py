"""The toy example's table: samples of several kinds judged against exact ones."""

from __future__ import annotations

__all__ = ["Row", "compare", "table"]

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from damc.metrics.two_sample import c2st_many, energy_distance


@dataclass(frozen=True)
class Row:
    """One kind of samples against the exact ones.

    Attributes:
        name: which samples.
        c2st: accuracy of the better of two classifiers that tell them from exact ones, mean over
            the observations; a second exact set has its own row, the level to compare with.
        c2st_sd: standard deviation of that accuracy over the observations.
        energy_distance: mean over the observations.
        gradients: log-density gradients spent for one sample.
        seconds: time to draw all samples of this kind.
        c2st_each, energy_each: the values of every observation.
    """

    name: str
    c2st: float
    c2st_sd: float
    energy_distance: float
    gradients: int
    seconds: float
    c2st_each: list[float]
    energy_each: list[float]


def compare(
    name: str,
    z: Tensor,
    exact: Tensor,
    generator: torch.Generator | None = None,
    *,
    gradients: int = 0,
    seconds: float = 0.0,
) -> Row:
    """Judges samples z against exact ones, both (G, n, 2) for G observations."""
    accuracy = c2st_many(z, exact, generator=generator)
    distance = [energy_distance(a, b) for a, b in zip(z, exact, strict=True)]
    return Row(
        name,
        c2st=float(accuracy.mean()),
        c2st_sd=float(accuracy.std(correction=min(1, len(accuracy) - 1))),
        energy_distance=sum(distance) / len(distance),
        gradients=gradients,
        seconds=seconds,
        c2st_each=accuracy.tolist(),
        energy_each=distance,
    )


def table(result: dict[str, Any]) -> str:
    """The result of `run_toy` as aligned text."""
    settings = result["settings"]
    lines = [
        f"{settings['samples']:,} samples against as many exact ones, "
        f"for {settings['heldout']} held-out observations (C2ST: 0.5 is chance)",
        "",
        f"{'samples of':<26}{'C2ST':>7}{'sd over x':>11}{'energy distance':>17}"
        f"{'gradients':>11}{'seconds':>9}",
    ]
    lines += [
        f"{row['name']:<26}{row['c2st']:>7.3f}{row['c2st_sd']:>11.3f}"
        f"{row['energy_distance']:>17.5f}{row['gradients']:>11,}{row['seconds']:>9.1f}"
        for row in result["table"]
    ]
    seconds = result["seconds"]
    lines += [
        "",
        f"{settings['iterations']:,} iterations in {seconds['train']:.0f} s with "
        f"{result['gradient_calls']:,} gradients; {seconds['all']:.0f} s in all",
    ]
    return "\n".join(lines)
