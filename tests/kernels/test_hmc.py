"""Hamiltonian Monte Carlo against laws it must keep, each check with its error bar."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import HMC, MALA, BadInput, State
from damc.density import LogProb, value_and_grad
from damc.kernels.base import StepInfo

CHAINS = 20_000
EULER = 0.5772156649015329


def gumbel(z: Tensor) -> Tensor:
    """Skewed: mean Euler's constant, third standardized moment 1.1395."""
    return -(z + torch.exp(-z)).sum(1)


def gumbel_deviation(kernel: HMC, generator: torch.Generator) -> float:
    """The larger of the errors of mean and skewness, in standard errors."""
    z = torch.randn(2 * CHAINS, 1, dtype=torch.float64, generator=generator)
    state, _ = kernel.run(z, gumbel, generator)
    z = state.z[:, 0]
    third = ((z - EULER) / (math.pi / math.sqrt(6))) ** 3
    errors = [(z.mean() - EULER) / z.std(), (third.mean() - 1.1395470994) / third.std()]
    return max(abs(float(e)) for e in errors) * math.sqrt(len(z))


class WithoutTheLastHalfKick(HMC):
    """Judges a trajectory by the momentum of half a step before its end."""

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, h = state.z, state.step_size
        assert h is not None
        value, grad = value_and_grad(log_prob, z)
        v = torch.empty_like(z).normal_(generator=generator)
        kinetic = v.square().sum(1) / 2
        new, new_grad, new_value = z, grad, value
        for _ in range(self.leapfrogs):
            v = v + h * new_grad
            new = new + h * v
            new_value, new_grad = value_and_grad(log_prob, new)
        ratio = new_value - v.square().sum(1) / 2 - value + kinetic
        accept = torch.rand(len(z), dtype=z.dtype, generator=generator).log() < ratio
        moved = torch.where(accept[:, None], new, z)
        return State(moved, step_size=h), StepInfo(value, len(z), accept.double())


def test_it_keeps_a_skewed_target_and_a_wrong_integrator_does_not(
    generator: torch.Generator,
) -> None:
    settings = {"leapfrogs": 4, "target_acceptance": None}
    assert gumbel_deviation(HMC(1.0, 25, **settings), generator) < 3.5  # type: ignore[arg-type]
    wrong = WithoutTheLastHalfKick(1.0, 25, **settings)  # type: ignore[arg-type]
    assert gumbel_deviation(wrong, generator) > 6


def test_with_one_leapfrog_step_and_no_jitter_it_is_mala() -> None:
    z = torch.linspace(-1, 3, 40, dtype=torch.float64).view(20, 2)

    def acceptance(kernel: HMC | MALA) -> tuple[Tensor, Tensor]:
        state, info = kernel.step(kernel.init(z), gumbel, torch.Generator().manual_seed(3))
        assert info.acceptance is not None
        return state.z, info.acceptance

    hmc = acceptance(HMC(0.7, leapfrogs=1, jitter=0.0))
    mala = acceptance(MALA(0.7))
    torch.testing.assert_close(hmc[1], mala[1])


@pytest.mark.parametrize("first", [1e-3, 30.0])
def test_adaptation_reaches_its_target(first: float, generator: torch.Generator) -> None:
    def unit(z: Tensor) -> Tensor:
        return -z.square().sum(1) / 2

    z = torch.randn(200, 10, dtype=torch.float64, generator=generator)
    state, _ = HMC(first, 300, target_acceptance=0.8).run(z, unit, generator)
    _, info = HMC(float(state.step_size), 100, target_acceptance=None).run(state.z, unit, generator)
    assert abs(float(info.acceptance) - 0.8) < 0.04


def test_jitter_forgets_where_a_period_would_return(generator: torch.Generator) -> None:
    """Trajectories of one period of N(0, 1) come back to their start unless lengths vary."""
    z = torch.randn(CHAINS, 1, dtype=torch.float64, generator=generator)
    h = 2 * math.asin(math.sin(2 * math.pi / 40) / 1)  # 20 leapfrog steps: about one period

    def memory(jitter: float) -> float:
        kernel = HMC(h, 5, leapfrogs=20, jitter=jitter, target_acceptance=None)
        state, _ = kernel.run(z, lambda z: -z.square().sum(1) / 2, generator)
        return float(torch.corrcoef(torch.cat([z, state.z], 1).T)[0, 1])

    assert memory(0.0) > 0.9 and abs(memory(0.5)) < 0.1


def test_divergences_are_counted_and_refused(generator: torch.Generator) -> None:
    z = torch.randn(100, 1, dtype=torch.float64, generator=generator) / 1e3

    def narrow(z: Tensor) -> Tensor:
        return -z.square().sum(1) * 1e6 / 2

    kernel = HMC(1e-3, 5, target_acceptance=None)
    _, fine = kernel.run(z, narrow, generator)
    assert fine.divergences is not None and int(fine.divergences) == 0
    kernel = HMC(3e-3, 5, leapfrogs=30, jitter=1.0, target_acceptance=None)
    state, info = kernel.run(z, narrow, generator)
    assert info.divergences is not None and 0 < int(info.divergences) < 500
    assert state.z.abs().max() < 1e-2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"leapfrogs": 0}, "leapfrogs must be at least 1, got 0"),
        ({"jitter": 1.5}, "jitter must lie in"),
        ({"target_acceptance": 0.0}, "between 0 and 1"),
    ],
)
def test_bad_input_is_one_clear_sentence(given: dict[str, float], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        HMC(0.1, **given)  # type: ignore[arg-type]
