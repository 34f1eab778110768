"""Jumps: exact between modes, where local moves alone stay wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc import MALA, BadInput, Gaussian, Independence, Langevin, distill
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
    jumping = Independence(0.3, 60, proposal=Gaussian(1, 3.0), local=MALA())
    assert abs(share_of_right_mode(jumping, generator) - 0.2) < 4 * error
    assert abs(share_of_right_mode(MALA(0.3, 60), generator) - 0.2) > 4 * error


class Lopsided(Gaussian):
    """Draws from another law than the density it claims."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return super().sample(n, generator) + 1.5


def test_a_proposal_that_lies_about_its_density_is_caught(generator: torch.Generator) -> None:
    error = math.sqrt(0.2 * 0.8 / CHAINS)
    wrong = Independence(0.3, 60, proposal=Lopsided(1, 3.0), local=MALA())
    assert abs(share_of_right_mode(wrong, generator) - 0.2) > 4 * error


def test_the_shape_inside_a_mode_stays_exact(generator: torch.Generator) -> None:
    start = torch.randn(CHAINS, 1, generator=generator)
    state, info = Independence(0.3, 60, proposal=Gaussian(1, 3.0), local=MALA()).run(
        start, two_modes, generator
    )
    left = state.z[state.z < 0]
    assert abs(float(left.mean()) + 3) < 4 * 0.5 / math.sqrt(len(left))
    assert abs(float(left.var()) / 0.25 - 1) < 4 * math.sqrt(2 / len(left))
    assert info.gradient_calls == (1 + 2 * 60) * CHAINS


def test_cached_values_belong_to_the_points(generator: torch.Generator) -> None:
    state, _ = Independence(0.3, 5, proposal=Gaussian(1, 3.0)).run(
        torch.zeros(50, 1), two_modes, generator
    )
    assert state.log_prob is not None
    torch.testing.assert_close(state.log_prob, two_modes(state.z))


def test_it_serves_as_a_kernel_of_distil(generator: torch.Generator) -> None:
    q = Amortizer(1, widths=(16, 16, 16), embedding=8)
    kernel = Independence(0.3, 5, proposal=Gaussian(1, 3.0))
    history = distill(
        q, two_modes, kernel, iterations=2, batch=16, sampling={"steps": 2}, progress=False,
        generator=generator,
    )  # fmt: skip
    assert history.gradient_calls == 2 * 11 * 16


def test_bad_input_is_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="needs a proposal"):
        Independence(0.1, 3)
    with pytest.raises(BadInput, match=r"drew \(4, 2\) for chains \(4, 1\)"):
        Independence(0.1, 3, proposal=Gaussian(2)).run(torch.zeros(4, 1), two_modes)


def test_a_proposal_that_cannot_be_seeded_is_refused() -> None:
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(BadInput, match="no generator"):
        Independence(0.1, 3, proposal=normal)  # type: ignore[arg-type]
