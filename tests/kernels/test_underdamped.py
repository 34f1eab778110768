"""Momentum: the exact variance on Gaussians, and what it costs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import BadInput, Langevin
from damc.kernels.base import Kernel
from damc.kernels.underdamped import Underdamped

PRECISION = torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64)
CHAINS = 20_000


def gaussian(z: Tensor) -> Tensor:
    return -(z.square() * PRECISION).sum(1) / 2


def deviations(kernel: Kernel, generator: torch.Generator) -> Tensor:
    """(variance - the target's) / its standard error after a run from the target itself."""
    z = torch.randn(CHAINS, 3, dtype=torch.float64, generator=generator) / PRECISION.sqrt()
    state, _ = kernel.run(z, gaussian, generator)
    return (state.z.var(0) * PRECISION - 1).abs() / math.sqrt(2 / CHAINS)


@pytest.mark.parametrize("friction", [0.5, 2.0, 50.0])
def test_it_leaves_a_gaussian_invariant_at_a_large_step(
    friction: float, generator: torch.Generator
) -> None:
    assert deviations(Underdamped(0.35, 60, friction=friction), generator).max() < 4


def test_the_unadjusted_chain_fails_the_same_check(generator: torch.Generator) -> None:
    assert deviations(Langevin(0.35, 60), generator).max() > 10


class WithoutTheSecondKick(Underdamped):
    """Leaves out half a kick: a wrong integrator that still looks plausible."""

    def step(self, state, log_prob, generator=None):  # type: ignore[no-untyped-def]
        new, info = super().step(state, log_prob, generator)
        grad = -PRECISION * new.z
        return new._replace(velocity=new.velocity - new.step_size / 2 * grad), info


def test_a_missing_kick_is_caught(generator: torch.Generator) -> None:
    assert deviations(WithoutTheSecondKick(0.35, 60), generator).max() > 10


def test_ten_moves_come_nearer_than_thirty_of_langevin(generator: torch.Generator) -> None:
    """From far away, each with the best of several step sizes."""

    def error(kernel: Kernel, steps: int) -> float:
        z = torch.randn(CHAINS, 3, dtype=torch.float64, generator=generator) + 1
        state, _ = kernel.run(z, gaussian, generator, steps=steps)
        shift = state.z.mean(0).square() * PRECISION
        return float((shift + (state.z.var(0) * PRECISION - 1).square() / 2).sum())

    sizes = (0.1, 0.2, 0.35)
    slow = min(error(Langevin(s), 30) for s in sizes)
    assert min(error(Underdamped(s), 10) for s in sizes) < slow / 3


def test_velocities_go_on_in_the_next_run(generator: torch.Generator) -> None:
    kernel, z = Underdamped(0.1), torch.zeros(4, 3, dtype=torch.float64)
    whole, info = kernel.run(z, gaussian, torch.Generator().manual_seed(1), steps=6)
    again = torch.Generator().manual_seed(1)
    half, _ = kernel.run(z, gaussian, again, steps=3)
    rest, more = kernel.run(half, gaussian, again, steps=3)
    assert rest.z.equal(whole.z) and rest.moves == 6
    assert info.gradient_calls == 6 * 4 and more.gradient_calls == 3 * 4


def test_friction_must_be_positive() -> None:
    with pytest.raises(BadInput, match="friction must be positive"):
        Underdamped(0.1, friction=0.0)


def test_friction_keeps_double_precision() -> None:
    """One free move in closed form: a share exp(-friction h) is kept, to the last digit."""
    kernel = Underdamped(0.1, 1, friction=3.0)
    z, v = torch.zeros(5, 2, dtype=torch.float64), torch.ones(5, 2, dtype=torch.float64)
    seed = torch.Generator().manual_seed(4)
    state, _ = kernel.run(
        kernel.init(z)._replace(velocity=v),
        lambda z: 0 * z.sum(1),
        torch.Generator().manual_seed(4),
    )
    keep = math.exp(-0.3)
    w = torch.empty_like(z).normal_(generator=seed)
    assert state.velocity is not None
    expected = keep * v + math.sqrt(1 - keep**2) * w
    torch.testing.assert_close(state.velocity, expected, rtol=0, atol=1e-14)
