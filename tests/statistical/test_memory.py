"""Chains take the memory of one move, however many moves they make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from damc import MALA, Langevin

pytestmark = pytest.mark.slow


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kernel", [Langevin(0.01), MALA(0.01)])
def test_memory_does_not_grow_with_the_number_of_moves(kernel: Langevin | MALA) -> None:
    net = nn.Sequential(
        nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
    )
    z = torch.randn(8000, 2)
    taken = []
    for steps in (30, 300):
        kernel.run(z, lambda z: -net(z).square().squeeze(1), steps=steps)
        taken.append(resident())
    # Keeping one small tensor of each move is enough to add hundreds of megabytes here.
    assert taken[1] < 1.1 * taken[0]
