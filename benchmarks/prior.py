"""The prior chain on the paper's energy: damc, a plain autograd loop, and torchebm's sampler."""

from __future__ import annotations

__all__ = ["rows"]

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import compared, count_flops
from damc import EnergyPrior, Langevin
from damc.nets import mlp_energy
from tests.reference.learning import langevin

STEP_SIZE, MOVES, LATENT = 0.4, 60, 128


def rows(rounds: int = 9, batches: tuple[int, ...] = (128, 4096)) -> list[dict[str, Any]]:
    """60 moves on the energy 128-200-200-1."""
    torch.manual_seed(0)
    energy = mlp_energy(LATENT)
    prior = EnergyPrior(energy)
    table = []
    for batch in batches:
        z = torch.randn(batch, LATENT)
        things = _ways(energy, prior, z)
        flops = {name: count_flops(thing) for name, thing in things.items()}
        table += compared(f"prior chain, batch {batch}", things, rounds, flops)
    return table


def _ways(energy: nn.Module, prior: EnergyPrior, z: Tensor) -> dict[str, Callable[[], Any]]:
    def potential(z: Tensor) -> Tensor:
        value: Tensor = energy(z) + z.square().sum(1) / 2
        return value

    kernel = Langevin(STEP_SIZE, MOVES)
    ways: dict[str, Callable[[], Any]] = {
        "plain autograd loop": lambda: langevin(z, potential, STEP_SIZE, MOVES, _seeded()),
        "damc": lambda: kernel.run(z, prior, _seeded()),
    }
    if find_spec("torchebm"):
        ways["torchebm"] = _torchebm(potential, z)
    return ways


def _torchebm(potential: Callable[[Tensor], Tensor], z: Tensor) -> Callable[[], Any]:
    """torchebm moves by z - eta grad U + sqrt(2 eta) w: the same chain with eta = s^2 / 2."""
    from torchebm.core import BaseModel
    from torchebm.samplers import LangevinDynamics

    class Model(BaseModel):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return potential(x)

    sampler = LangevinDynamics(Model(), step_size=STEP_SIZE**2 / 2, noise_scale=1.0)
    return lambda: sampler.sample(z, n_steps=MOVES, generator=_seeded())


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
