"""Jumps: exact between modes, where local moves alone stay wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import (
    MALA,
    BadInput,
    Gaussian,
    Independence,
    Kernel,
    Langevin,
    State,
    Underdamped,
    distill,
)
from damc.amortize import Amortizer

CHAINS = 8000


def two_modes(z: Tensor) -> Tensor:
    """0.8 N(-3, 0.5^2) + 0.2 N(3, 0.5^2): local moves practically never cross."""
    left = math.log(0.8) - (z + 3).square().sum(1) / 0.5
    right = math.log(0.2) - (z - 3).square().sum(1) / 0.5
    return torch.logaddexp(left, right)


def share_of_right_mode(
    kernel: Langevin | MALA | Independence, generator: torch.Generator
) -> float:
    start = torch.randn(CHAINS, 1, generator=generator)
    state, _ = kernel.run(start, two_modes, generator)
    return float((state.z > 0).float().mean())


def test_jumps_give_modes_their_masses_and_local_moves_do_not(generator: torch.Generator) -> None:
    error = math.sqrt(0.2 * 0.8 / CHAINS)
    jumping = Independence(steps=60, proposal=Gaussian(1, 3.0), local=MALA(0.3, 1))
    assert abs(share_of_right_mode(jumping, generator) - 0.2) < 4 * error
    assert abs(share_of_right_mode(MALA(0.3, 60), generator) - 0.2) > 4 * error


class Lopsided(Gaussian):
    """Draws from another law than the density it claims."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return super().sample(n, generator) + 1.5


def test_a_proposal_that_lies_about_its_density_is_caught(generator: torch.Generator) -> None:
    error = math.sqrt(0.2 * 0.8 / CHAINS)
    wrong = Independence(steps=60, proposal=Lopsided(1, 3.0), local=MALA(0.3, 1))
    assert abs(share_of_right_mode(wrong, generator) - 0.2) > 4 * error


def unit(z: Tensor) -> Tensor:
    return -z.square().sum(1) / 2


def variance_deviation(local: Underdamped, generator: torch.Generator) -> float:
    """|variance - 1| on N(0, 1) in standard errors, starting there, at a large step."""
    z = torch.randn(10 * CHAINS, 1, dtype=torch.float64, generator=generator)
    kernel = Independence(steps=20, proposal=Gaussian(1, 1.5), local=local)
    state, _ = kernel.run(z, unit, generator)
    return float((state.z.var() - 1).abs() / math.sqrt(2 / len(z)))


class OwnKickOnly(Underdamped):
    """Forgets that a chain's last half kick belongs to the point it left."""

    def relocate(self, state: State, where: Tensor, new: State) -> State:
        return Kernel.relocate(self, state, where, new)


class TurnedRound(Underdamped):
    """Settles the difference of the half kicks with the wrong sign."""

    def relocate(self, state: State, where: Tensor, new: State) -> State:
        right = super().relocate(state, where, new)
        assert right.velocity is not None and state.velocity is not None
        return right._replace(velocity=2 * state.velocity - right.velocity)


def test_jumps_of_chains_with_momentum_keep_a_gaussian(generator: torch.Generator) -> None:
    """BAOAB has a Gaussian's exact variance at every step, so a jump must not change it."""
    assert variance_deviation(Underdamped(1.0, 1), generator) < 4
    assert variance_deviation(OwnKickOnly(1.0, 1), generator) > 10
    assert variance_deviation(TurnedRound(1.0, 1), generator) > 5


def test_both_acceptances_are_reported(generator: torch.Generator) -> None:
    """Jumps of N(0, 1) proposals N(0, 2^2): E min(1, w(z') / w(z)), by quadrature."""
    z = torch.randn(CHAINS, 1, dtype=torch.float64, generator=generator)
    x = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    p, g = torch.exp(-x.square() / 2), torch.exp(-x.square() / 8) / 2
    exact = float((p[:, None] * g * torch.clamp((p / g) / (p / g)[:, None], max=1)).sum())
    exact *= 0.02**2 / (2 * math.pi)
    for local in (Langevin(0.01, 1), MALA(1.5, 1, target_acceptance=None)):
        _, info = Independence(steps=5, proposal=Gaussian(1, 2.0), local=local).run(
            z, unit, generator
        )
        assert abs(float(info.acceptance) - exact) < 0.01
        _, alone = local.run(z, unit, generator, steps=5)
        assert info.local_acceptance is not None
        assert abs(float(info.local_acceptance) - float(alone.acceptance)) < 0.01


def test_the_local_kernel_keeps_its_own_step_size_and_steps(generator: torch.Generator) -> None:
    z = torch.zeros(6, 1, dtype=torch.float64)
    far = Gaussian(1, 1e-9, mean=1e6)  # never accepted
    kernel = Independence(steps=2, proposal=far, local=Langevin(0.2, 3))
    state, info = kernel.run(z, unit, generator)
    assert kernel.step_size == state.step_size == 0.2 and state.moves == 6
    assert info.gradient_calls == 6 * (6 + 2 + 1)  # chains x (local, jumps, the last point)


@pytest.mark.parametrize("given", ["scale", "covariance"])
def test_a_gaussian_has_a_mean_and_a_shape(given: str, generator: torch.Generator) -> None:
    mean, sds = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 3.0]).double()
    covariance = torch.diag(sds.square())
    if given == "covariance":
        covariance[0, 1] = covariance[1, 0] = 1.0
        g = Gaussian(2, mean=mean, covariance=covariance)
    else:
        g = Gaussian(2, sds, mean)
    law = torch.distributions.MultivariateNormal(mean, covariance)
    z = g.sample(200_000, generator)
    torch.testing.assert_close(g.log_prob(z), law.log_prob(z))
    error = (z.mean(0) - mean) / sds * math.sqrt(len(z))
    assert error.abs().max() < 4
    torch.testing.assert_close(z.T.cov(), covariance, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gaussian(0), "dim must be a positive whole number, got 0"),
        (lambda: Gaussian(2, torch.ones(3)), r"scale must be one number .* got shape \(3,\)"),
        (lambda: Gaussian(2, torch.tensor([1.0, 0.0])), "scale must be positive"),
        (lambda: Gaussian(2, mean=torch.ones(1, 2)), r"mean must be one number .* \(1, 2\)"),
        (lambda: Gaussian(1, mean=math.nan), "mean must be finite"),
        (lambda: Gaussian(2, covariance=torch.ones(2)), r"shape \(2, 2\), got \(2,\)"),
        (lambda: Gaussian(2, covariance=-torch.eye(2)), "positive definite"),
        (lambda: Gaussian(2, 2.0, covariance=torch.eye(2)), "give one of them"),
    ],
)
def test_a_gaussian_checks_what_it_is_given(make: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()  # type: ignore[operator]


def test_the_shape_inside_a_mode_stays_exact(generator: torch.Generator) -> None:
    start = torch.randn(CHAINS, 1, generator=generator)
    state, info = Independence(steps=60, proposal=Gaussian(1, 3.0), local=MALA(0.3, 1)).run(
        start, two_modes, generator
    )
    left = state.z[state.z < 0]
    assert abs(float(left.mean()) + 3) < 4 * 0.5 / math.sqrt(len(left))
    assert abs(float(left.var()) / 0.25 - 1) < 4 * math.sqrt(2 / len(left))
    assert info.gradient_calls == (1 + 2 * 60) * CHAINS


def test_cached_values_belong_to_the_points(generator: torch.Generator) -> None:
    state, _ = Independence(steps=5, proposal=Gaussian(1, 3.0), local=Langevin(0.3, 1)).run(
        torch.zeros(50, 1), two_modes, generator
    )
    assert state.log_prob is not None
    torch.testing.assert_close(state.log_prob, two_modes(state.z))


def test_it_serves_as_a_kernel_of_distil(generator: torch.Generator) -> None:
    q = Amortizer(1, widths=(16, 16, 16), embedding=8)
    kernel = Independence(steps=5, proposal=Gaussian(1, 3.0), local=Langevin(0.3, 1))
    history = distill(
        q, two_modes, kernel, iterations=2, batch=16, sampling={"steps": 2}, progress=False,
        generator=generator,
    )  # fmt: skip
    assert history.gradient_calls == 2 * 11 * 16


def test_bad_input_is_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="needs a proposal"):
        Independence(steps=3)
    with pytest.raises(BadInput, match=r"drew \(4, 2\) for chains \(4, 1\)"):
        Independence(steps=3, proposal=Gaussian(2)).run(torch.zeros(4, 1), two_modes)


def test_a_proposal_that_cannot_be_seeded_is_refused() -> None:
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(BadInput, match="no generator"):
        Independence(steps=3, proposal=normal)  # type: ignore[arg-type]
