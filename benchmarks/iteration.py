"""One whole training iteration: the fast path against the plain transcription of Algorithm 1."""

from __future__ import annotations

__all__ = ["rows"]

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.plain_learning import PlainDAMC
from benchmarks.timing import compared
from damc import DAMC
from damc.presets import find

CASES = {
    "svhn": (32, 5),
    "mnist": (32, 2),
    "cifar10": (32, 2),
    "mnist-small": (128, 9),
    "svhn-small": (128, 9),
    "cifar10-small": (128, 9),
}
"""Batch and rounds of each preset."""

EXACT: dict[str, Any] = {
    "start_solver": "ancestral",
    "start_steps": 100,
    "encoder_updates": None,
}
FEW: dict[str, Any] = EXACT | {"start_solver": "multistep", "start_steps": 10}
SHARED: dict[str, Any] = FEW | {"encoder_updates": 1}
SHORT: dict[str, Any] = {"posterior_kernel": "underdamped", "posterior_steps": 10}
"""What chains are shortened to where the preset itself does not say it for DAMC."""


def rows(names: tuple[str, ...] = tuple(CASES), rounds: int | None = None) -> list[dict[str, Any]]:
    """Five ways for each preset; the last three are approximations, each with the one before."""
    table = []
    for name in names:
        batch, usual = CASES[name]
        table += compared(f"{name}, batch {batch}", _ways(name, batch), rounds or usual)
    return table


def _ways(name: str, batch: int) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    preset = find(name)
    shape, moves = preset.networks.shape, {"posterior_steps": preset.settings.posterior_steps}
    warm = preset.own.get("damc")
    x, index = torch.rand(batch, *shape) * 2 - 1, torch.arange(batch)
    generator = torch.Generator().manual_seed(0)
    exact = DAMC.from_preset(name, **EXACT, **moves)
    few = DAMC.from_preset(name, **FEW, **moves)
    shared = DAMC.from_preset(name, **SHARED, **moves)
    short = DAMC.from_preset(name, **SHARED, **(warm or SHORT))
    plainly = PlainDAMC(exact)
    return {
        "plain transcription": lambda: plainly.step(x, generator),
        "damc, same mathematics": lambda: exact.step(x, index, generator),
        "damc, 10-step starts": lambda: few.step(x, index, generator),
        "damc, 10-step starts, encoder in 1 of 6 updates": lambda: shared.step(x, index, generator),
        f"damc, and 10 {'' if warm else 'underdamped '}moves": lambda: short.step(
            x, index, generator
        ),
    }
