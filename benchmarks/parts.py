"""The parts of an iteration one by one, with the share of the machine's peak that they reach."""

from __future__ import annotations

__all__ = ["chains", "rows", "updates"]

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import compared, count_flops
from damc.learn.damc import PaperDAMC
from damc.learn.parts import sampler_step
from damc.learn.presets import find_preset
from tests.reference.learning import PlainDAMC

CASES = {
    "svhn": (32, 7, 5),
    "mnist": (32, 3, 2),
    "mnist-small": (128, 9, 30),
    "svhn-small": (128, 9, 20),
}
"""Batch, rounds, and moves of the posterior chain."""


def rows(names: tuple[str, ...] = tuple(CASES)) -> list[dict[str, Any]]:
    """Posterior chain and amortizer updates of each preset."""
    table = []
    for name in names:
        table += chains(name, *CASES[name]) + updates(name, *CASES[name][:2])
    return table


def chains(name: str, batch: int, rounds: int, moves: int) -> list[dict[str, Any]]:
    """The posterior chain."""
    learner, plainly, x = _learners(name, batch, posterior_steps=moves)
    z = torch.randn(batch, learner.model.latent_dim)
    posterior = learner.model.posterior(x)

    def fast() -> Any:
        return learner.posterior_chain.kernel.run(z, posterior, _seeded())

    things = {"plain transcription": lambda: plainly.posterior_chain(z, x, _seeded()), "damc": fast}
    return _measured(f"posterior chain, {name}, batch {batch}, {moves} moves", things, rounds)


def updates(name: str, batch: int, rounds: int) -> list[dict[str, Any]]:
    """The M updates of the amortizer."""
    learner, plainly, x = _learners(name, batch)
    z = torch.randn(batch, learner.model.latent_dim)
    s = learner.settings
    things = {
        "plain transcription": lambda: plainly.learn_amortizer(z, x, _seeded()),
        "damc": lambda: sampler_step(
            learner.amortizer,
            x,
            z,
            _seeded(),
            update=learner.update,
            updates=s.updates,
            encoder_updates=s.encoder_updates,
            p_uncond=s.p_uncond,
            unconditional=s.unconditional,
        ),
    }
    return _measured(f"{s.updates} amortizer updates, {name}, batch {batch}", things, rounds)


def _measured(what: str, things: dict[str, Callable[[], Any]], rounds: int) -> list[dict[str, Any]]:
    flops = {name: count_flops(thing) for name, thing in things.items()}
    return compared(what, things, rounds, flops)


def _learners(name: str, batch: int, **changes: Any) -> tuple[PaperDAMC, PlainDAMC, torch.Tensor]:
    torch.manual_seed(0)
    learner = PaperDAMC.from_preset(name, encoder_updates=None, **changes)
    return learner, PlainDAMC(learner), torch.rand(batch, *find_preset(name).networks.shape) * 2 - 1


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
