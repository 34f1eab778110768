"""One whole training iteration: the fast path against the plain transcription of Algorithm 1."""

from __future__ import annotations

__all__ = ["rows"]

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import compared
from damc.learn.damc import PaperDAMC
from damc.learn.presets import find_preset
from tests.reference.learning import PlainDAMC

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
    """The iteration of Algorithm 1 with the paper's choices: the same mathematics, then
    approximations, each with those before it.

    Where the preset gives DAMC shorter chains than other methods, a second group has the longer
    ones, against which the shorter are an approximation too.
    """
    table = []
    for name in names:
        batch, usual = CASES[name]
        for title, ways in _groups(name, batch).items():
            table += compared(f"{name}, batch {batch}, {title}", ways, rounds or usual)
    return table


def _groups(name: str, batch: int) -> dict[str, dict[str, Callable[[], Any]]]:
    torch.manual_seed(0)
    preset = find_preset(name)
    x, index = torch.rand(batch, *preset.networks.shape) * 2 - 1, torch.arange(batch)
    generator = torch.Generator().manual_seed(0)

    def fast(settings: dict[str, Any]) -> Callable[[], Any]:
        learner = PaperDAMC.from_preset(name, **settings)
        return lambda: learner.step(x, index, generator)

    def plainly(settings: dict[str, Any]) -> Callable[[], Any]:
        learner = PlainDAMC(PaperDAMC.from_preset(name, **settings))
        return lambda: learner.step(x, generator)

    ways = {
        "plain transcription": plainly(EXACT),
        "damc, same mathematics": fast(EXACT),
        "damc, 10-step starts": fast(FEW),
        "damc, 10-step starts, encoder in 1 of 6 updates": fast(SHARED),
    }
    moves = {"posterior_steps": preset.recipe.posterior_steps}
    own = preset.recipe.warm_posterior_steps
    if own is None:
        ways["damc, and 10 underdamped moves"] = fast(SHARED | SHORT)
        return {f"{moves['posterior_steps']} moves": ways}
    longer = {
        "plain transcription": plainly(EXACT | moves),
        "damc, same mathematics": fast(EXACT | moves),
        f"damc, all savings and {own} moves": fast(SHARED),
    }
    return {f"{own} moves": ways, f"{moves['posterior_steps']} moves": longer}
