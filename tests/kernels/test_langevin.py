"""Kernels against the laws they are known to have, each check with its error bar."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import MALA, BadInput, Diverged, Kernel, Langevin, State, StepInfo
from damc.density import LogProb, value_and_grad

PRECISION = torch.tensor([1.0, 25.0, 100.0], dtype=torch.float64)
CHAINS = 20_000
EULER = 0.5772156649015329


def gaussian(z: Tensor) -> Tensor:
    return -(z.square() * PRECISION).sum(1) / 2


def gumbel(z: Tensor) -> Tensor:
    """Skewed, so that a wrong sign anywhere shows: mean Euler's constant, variance pi^2 / 6."""
    return -(z + torch.exp(-z)).sum(1)


def start(dim: int, generator: torch.Generator, chains: int = CHAINS) -> Tensor:
    return torch.randn(chains, dim, dtype=torch.float64, generator=generator)


def variance_deviations(z: Tensor, variance: Tensor) -> Tensor:
    """(estimate - variance) / its standard error, for independent normal chains."""
    return (z.var(0) - variance) / (variance * math.sqrt(2 / len(z)))


def test_one_move_is_the_equation(generator: torch.Generator) -> None:
    z = start(3, generator, 7)
    s, mirror = 0.2, torch.Generator().manual_seed(5)
    state, info = Langevin(s, 1).run(z, gaussian, torch.Generator().manual_seed(5))
    w = torch.empty_like(z).normal_(generator=mirror)
    torch.testing.assert_close(state.z, z + s**2 / 2 * (-PRECISION * z) + s * w)
    torch.testing.assert_close(info.displacement, (state.z - z).norm(dim=1).mean())


def test_without_noise_it_is_gradient_ascent(generator: torch.Generator) -> None:
    z = start(3, generator, 7)
    state, _ = Langevin(0.1, 4, noise=False).run(z, gaussian)
    torch.testing.assert_close(state.z, z * (1 - 0.005 * PRECISION) ** 4)


def test_unadjusted_langevin_has_its_known_biased_variance(generator: torch.Generator) -> None:
    z = start(3, generator) / PRECISION.sqrt()
    s = 0.1
    state, _ = Langevin(s, 700).run(z, gaussian, generator)
    stationary = 1 / (PRECISION * (1 - PRECISION * s**2 / 4))
    assert variance_deviations(state.z, stationary).abs().max() < 3
    # The same check tells the biased law from the unbiased one where they differ visibly.
    assert variance_deviations(state.z, 1 / PRECISION)[1:].abs().min() > 3


def test_too_large_a_step_raises_diverged(generator: torch.Generator) -> None:
    z = start(1, generator, 10).float()
    with pytest.raises(Diverged, match=r"log-density stopped being finite after \d+ of 2000"):
        Langevin(0.1, 2000).run(z, lambda z: -500 * z.square().sum(1) / 2, generator)


def test_mala_removes_the_bias(generator: torch.Generator) -> None:
    z = start(3, generator) / PRECISION.sqrt()
    scaled = 1 / PRECISION.sqrt()  # work in coordinates where one step size fits all

    def whitened(v: Tensor) -> Tensor:
        return gaussian(v * scaled)

    state, info = MALA(1.3, 40, target_acceptance=None).run(z / scaled, whitened, generator)
    assert 0.2 < info.acceptance < 0.9
    assert variance_deviations(state.z * scaled, 1 / PRECISION).abs().max() < 3
    unadjusted, _ = Langevin(1.3, 40).run(z / scaled, whitened, generator)
    assert variance_deviations(unadjusted.z * scaled, 1 / PRECISION).abs().min() > 3


def gumbel_deviations(kernel: Kernel, generator: torch.Generator) -> tuple[float, float]:
    state, _ = kernel.run(start(1, generator, 3 * CHAINS), gumbel, generator)
    z = state.z[:, 0]
    mean = (z.mean() - EULER) / (z.std() / math.sqrt(len(z)))
    third = ((z - EULER) / (math.pi / math.sqrt(6))) ** 3
    skew = (third.mean() - 1.1395470994) / (third.std() / math.sqrt(len(z)))
    return abs(float(mean)), abs(float(skew))


def test_mala_on_a_skewed_target(generator: torch.Generator) -> None:
    mean, skew = gumbel_deviations(MALA(0.6, 100, target_acceptance=None), generator)
    assert mean < 3 and skew < 3


class WrongSign(MALA):
    """MALA with one sign of the backward move turned round."""

    def step(
        self, state: State, log_prob: LogProb, generator: torch.Generator | None = None
    ) -> tuple[State, StepInfo]:
        z, s = state.z, state.step_size
        assert s is not None
        value, grad = value_and_grad(log_prob, z)
        w = torch.empty_like(z).normal_(generator=generator)
        proposal = z + s**2 / 2 * grad + s * w
        new_value, new_grad = value_and_grad(log_prob, proposal)
        back = (z - proposal + s**2 / 2 * new_grad) / s
        ratio = new_value - value + (w.square() - back.square()).sum(1) / 2
        accept = torch.rand(len(z), dtype=z.dtype, generator=generator).log() < ratio
        moved = torch.where(accept[:, None], proposal, z)
        return state._replace(z=moved), StepInfo(value, len(z), accept.double())


def test_a_sign_error_in_the_correction_is_caught(generator: torch.Generator) -> None:
    mean, skew = gumbel_deviations(WrongSign(0.6, 100), generator)
    assert max(mean, skew) > 3


def test_the_unadjusted_chain_fails_the_skewed_check(generator: torch.Generator) -> None:
    mean, skew = gumbel_deviations(Langevin(1.0, 60), generator)
    assert max(mean, skew) > 3


@pytest.mark.parametrize("first", [0.01, 8.0])
def test_adaptation_reaches_its_target(first: float, generator: torch.Generator) -> None:
    kernel = MALA(first, 600, target_acceptance=0.574)
    z = start(5, generator, 200)
    state, _ = kernel.run(z, lambda z: -z.square().sum(1) / 2, generator)
    _, info = MALA(float(state.step_size), 200, target_acceptance=None).run(
        state.z, lambda z: -z.square().sum(1) / 2, generator
    )
    assert abs(float(info.acceptance) - 0.574) < 0.05


def test_an_adapted_step_size_goes_on_in_the_next_run(generator: torch.Generator) -> None:
    kernel = MALA(1e-6, 50, target_acceptance=0.574)
    state, _ = kernel.run(start(2, generator, 50), gumbel, generator)
    again, _ = kernel.run(State(state.z, step_size=state.step_size, moves=50), gumbel, generator)
    assert float(again.step_size) > float(state.step_size) > 0.01
    assert again.moves == 100


def test_chains_may_have_their_own_step_sizes(generator: torch.Generator) -> None:
    z = torch.zeros(2 * CHAINS, 1, dtype=torch.float64)
    s = torch.tensor([0.1, 0.4], dtype=torch.float64).repeat_interleave(CHAINS)
    state, _ = Langevin(s, 1).run(z, gumbel, generator)
    small, large = state.z[:CHAINS], state.z[CHAINS:]
    assert abs(float(small.std() / 0.1) - 1) < 0.03 and abs(float(large.std() / 0.4) - 1) < 0.03


def test_a_chain_of_t_moves_costs_t_gradients(generator: torch.Generator) -> None:
    calls = 0

    def counted(z: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return gumbel(z)

    z = start(1, generator, 8)
    _, info = Langevin(0.1, 5).run(z, counted, generator)
    assert calls == 5 and info.gradient_calls == 5 * 8
    calls = 0
    state, info = MALA(0.1, 5).run(z, counted, generator)
    assert calls == 6 and info.gradient_calls == 6 * 8
    assert state.log_prob is not None and state.log_prob.equal(gumbel(state.z))


def test_the_trace_is_thinned_and_ends_at_the_state(generator: torch.Generator) -> None:
    state, info = Langevin(0.1, 9).run(start(2, generator, 4), gumbel, generator, thin=3)
    assert info.trace is not None and info.trace.shape == (3, 4, 2)
    assert info.trace[-1].equal(state.z)


def test_zero_moves_leave_the_chains(generator: torch.Generator) -> None:
    z = start(2, generator, 4)
    state, info = Langevin(0.1, 9).run(z, gumbel, generator, steps=0)
    assert state.z.equal(z) and info.gradient_calls == 0 and float(info.displacement) == 0


def test_the_same_seed_repeats_bit_for_bit() -> None:
    z = torch.zeros(4, 2)
    runs = [
        kernel.run(z, gumbel, torch.Generator().manual_seed(1))[0].z
        for kernel in (Langevin(0.1, 9), MALA(0.5, 9))
        for _ in range(2)
    ]
    assert runs[0].equal(runs[1]) and runs[2].equal(runs[3])


def test_mala_refuses_to_leave_the_support(generator: torch.Generator) -> None:
    def half_line(z: Tensor) -> Tensor:
        return torch.where(z[:, 0] > 0, -z[:, 0], -math.inf)

    state, info = MALA(1.0, 200, target_acceptance=None).run(
        start(1, generator).abs(), half_line, generator
    )
    assert bool((state.z > 0).all()) and float(info.acceptance) < 1
    deviation = (state.z.mean() - 1) / (1 / math.sqrt(CHAINS))
    assert abs(float(deviation)) < 3


@pytest.mark.parametrize("kernel", [Langevin(0.1, 3), MALA(0.1, 3)])
def test_a_log_density_that_is_not_finite_is_named(kernel: Kernel) -> None:
    with pytest.raises(Diverged, match="not finite where the chains start"):
        kernel.run(torch.ones(3, 1), lambda z: (z[:, 0] - 2).log())


def test_a_nan_at_a_proposal_is_not_swallowed() -> None:
    def cliff(z: Tensor) -> Tensor:
        return torch.where(z[:, 0].abs() > 1e-9, z[:, 0] * math.nan, z[:, 0])

    with pytest.raises(Diverged, match="acceptance"):
        MALA(0.1, 3).run(torch.zeros(3, 1), cliff, torch.Generator().manual_seed(0))


def test_a_nan_at_a_proposal_counts_as_refused(generator: torch.Generator) -> None:
    """sqrt(1 - z) on z < 1: NaN beyond, which neither chains nor the shared step size may take."""

    def wedge(z: Tensor) -> Tensor:
        return torch.sqrt(1 - z[:, 0]).log() - (z[:, 0] + 1).square()

    kernel = MALA(0.5, 200, target_acceptance=0.574)
    state, info = kernel.run(start(1, generator).clamp(max=0.5), wedge, generator)
    x = torch.linspace(-8, 1, 100_001, dtype=torch.float64)[:-1]
    density = torch.sqrt(1 - x) * torch.exp(-(x + 1).square())
    mean = (density * x).sum() / density.sum()
    assert info.divergences is not None and 0 < int(info.divergences) < 200 * CHAINS / 2
    assert 0.1 < float(state.step_size) < 10
    assert abs(float((state.z.mean() - mean) / (state.z.std() / math.sqrt(CHAINS)))) < 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Langevin(-0.1, 3), "step_size must be a positive number"),
        (lambda: Langevin(math.nan, 3), "step_size must be a positive number"),
        (lambda: Langevin(0.1, 0), "steps must be at least 1"),
        (lambda: MALA(0.1, 3, target_acceptance=1.5), "between 0 and 1"),
        (lambda: Langevin(0.1, 3).run(torch.zeros(3), gumbel), r"points \(B, d\)"),
        (lambda: Langevin(0.1, 3).run(torch.zeros(3, 1).long(), gumbel), "floating type"),
        (lambda: Langevin(torch.ones(2), 3).run(torch.zeros(3, 1), gumbel), "2 step sizes for 3"),
        (lambda: Langevin(0.1, 3).run(torch.zeros(3, 1), gumbel, steps=-1), "not be negative"),
    ],
)
def test_bad_input_is_one_clear_sentence(make: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()  # type: ignore[operator]


def test_float32_agrees_with_float64() -> None:
    z = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    kernel = Langevin(0.3, 50, noise=False)
    end64, _ = kernel.run(z, gumbel)
    end32, _ = kernel.run(z.float(), gumbel)
    torch.testing.assert_close(end32.z.double(), end64.z, rtol=1e-5, atol=1e-5)
