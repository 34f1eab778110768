"""The samplers against closed forms, and against scipy's solver on a learned denoiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from damc import Amortizer, BadInput
from damc.diffusion.sampling import SOLVERS, ancestral, solve
from damc.diffusion.schedule import TruncatedCosine

SCHEDULE = TruncatedCosine()


class Learned(NamedTuple):
    """A briefly trained sampler, noise, and where scipy says that its flow takes it."""

    epsilon: Callable[[Tensor, Tensor], Tensor]  # (z, angle) -> eps^
    noise: Tensor
    end: Tensor

    def error(self, solver: str, steps: int) -> float:
        """The mean distance of a solver's end points from scipy's."""
        angles = SCHEDULE.angle(torch.linspace(1, 0, steps + 1, dtype=torch.float64))
        end = solve(
            lambda z, i: self.epsilon(z, angles[i]), self.noise, SCHEDULE, steps, solver
        )  # fmt: skip
        return float((end - self.end).norm(dim=1).mean())


@pytest.fixture(scope="module")
def learned() -> Learned:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    q = Amortizer(2, embedding=8, widths=(16, 16, 16)).double()
    optimizer = torch.optim.Adam(q.parameters(), 5e-3)
    for _ in range(300):  # a ring of radius 2 and width 0.1
        side = 2 * math.pi * torch.rand(64, dtype=torch.float64, generator=generator)
        ring = 2 * torch.stack([side.cos(), side.sin()], 1)
        z = ring + 0.1 * torch.randn(64, 2, dtype=torch.float64, generator=generator)
        loss = q.loss(z, generator=generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    noise = torch.randn(12, 2, dtype=torch.float64, generator=generator)

    @torch.no_grad()
    def epsilon(z: Tensor, angle: Tensor) -> Tensor:
        return q.denoiser(z, angle, q.null)  # type: ignore[no-any-return]

    def slope(angle: float, z: np.ndarray) -> np.ndarray:
        """dz/d angle = alpha' z^ + sigma' eps^, in the angle whose cosine and sine they are."""
        at = torch.from_numpy(z).view(-1, 2)
        eps = epsilon(at, torch.tensor(angle, dtype=torch.float64))
        clean = (at - math.sin(angle) * eps) / math.cos(angle)
        return (-math.sin(angle) * clean + math.cos(angle) * eps).flatten().numpy()

    ends = SCHEDULE.angle(torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist()
    solved = solve_ivp(slope, ends, noise.flatten().numpy(), rtol=1e-7, atol=1e-8)
    assert solved.success
    return Learned(epsilon, noise, torch.from_numpy(solved.y[:, -1]).view(-1, 2))


def test_the_denoiser_has_learned_its_ring(learned: Learned) -> None:
    """So that the flow bends: noise of every radius comes to rest near 2."""
    radius = learned.end.norm(dim=1)
    assert abs(float(radius.mean()) - 2) < 0.4
    assert (radius - 2).abs().mean() < (learned.noise.norm(dim=1) - 2).abs().mean() / 2


@pytest.mark.parametrize(("solver", "order", "bound"), [("ddim", 1, 1e-2), ("multistep", 2, 1e-3)])
def test_solvers_converge_to_scipys_solution_with_their_order(
    learned: Learned, solver: str, order: int, bound: float
) -> None:
    errors = [learned.error(solver, steps) for steps in (80, 160, 320, 640)]
    assert errors[-1] < bound
    # The time embedding is fast and the network has kinks: single halvings of the step scatter
    # around the order, and their mean is what is held.
    assert abs(math.log2(errors[0] / errors[-1]) / 3 - order) < 0.4, errors


def test_multistep_beats_first_order_on_a_learned_denoiser(learned: Learned) -> None:
    ratios = [learned.error("ddim", n) / learned.error("multistep", n) for n in (10, 20, 40)]
    assert math.prod(ratios) > 2, ratios


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_one_ancestral_step_has_the_closed_form(gamma: float, generator: torch.Generator) -> None:
    n, t, s = 200_000, 0.6, 0.35
    times = torch.tensor([t, s], dtype=torch.float64)
    (alpha_t, alpha_s), (sigma_t, sigma_s) = SCHEDULE(times)
    z = torch.full((n, 1), 0.7, dtype=torch.float64)
    eps = -0.4

    def epsilon(z: Tensor, i: int) -> Tensor:
        return torch.full_like(z, eps if i == 0 else 0.0)

    end = ancestral(epsilon, z, SCHEDULE, times, gamma=gamma, generator=generator) * alpha_s
    r = torch.exp(SCHEDULE.log_snr(times[0]) - SCHEDULE.log_snr(times[1]))
    clean = (0.7 - sigma_t * eps) / alpha_t
    mean = r * alpha_s / alpha_t * 0.7 + (1 - r) * alpha_s * clean
    variance = ((1 - r) * sigma_s**2) ** (1 - gamma) * ((1 - r) * sigma_t**2) ** gamma
    assert abs((end.mean() - mean) / (variance / n).sqrt()) < 4
    assert abs((end.var() - variance) / (variance * math.sqrt(2 / n))) < 4
    # Power: the other end of gamma is far outside the same error bar.
    other = (1 - r) * (sigma_s if gamma > 0.5 else sigma_t) ** 2
    assert abs((end.var() - other) / (other * math.sqrt(2 / n))) > 10


def gaussian_epsilon(mean: float, variance: float, times: Tensor) -> object:
    """The exact noise predictor of N(mean, variance), and where its flow takes a point."""
    alpha, sigma = SCHEDULE(times)

    def epsilon(z: Tensor, i: int) -> Tensor:
        return sigma[i] * (z - alpha[i] * mean) / (alpha[i] ** 2 * variance + sigma[i] ** 2)

    return epsilon


def flow(z: Tensor, mean: float, variance: float) -> Tensor:
    """The probability flow of a Gaussian is linear: standard scores are kept."""
    alpha, sigma = SCHEDULE(torch.tensor([1.0, 0.0], dtype=torch.float64))
    sd = (alpha**2 * variance + sigma**2).sqrt()
    return alpha[1] * mean + sd[1] / sd[0] * (z - alpha[0] * mean)


@pytest.mark.parametrize(
    ("solver", "steps", "tolerance"),
    [("ddim", 100, 0.02), ("multistep", 20, 0.02)],
)
def test_solvers_follow_a_gaussians_flow(solver: str, steps: int, tolerance: float) -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    kept, exact = z.clone(), flow(z, 1.5, 0.3)
    errors = []
    for n in (steps // 2, steps):
        times = torch.linspace(1, 0, n + 1, dtype=torch.float64)
        end = solve(gaussian_epsilon(1.5, 0.3, times), z, SCHEDULE, n, solver)  # type: ignore[arg-type]
        errors.append(float((end - exact).abs().max()))
    assert errors[1] < tolerance and z.equal(kept)
    assert errors[1] < errors[0] / (1.7 if solver == "ddim" else 2.8)  # first and second order


def test_multistep_beats_first_order_at_equal_cost() -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    times = torch.linspace(1, 0, 11, dtype=torch.float64)
    epsilon = gaussian_epsilon(1.5, 0.3, times)
    error = {
        name: float((solve(epsilon, z, SCHEDULE, 10, name) - flow(z, 1.5, 0.3)).abs().max())  # type: ignore[arg-type]
        for name in ("ddim", "multistep")
    }
    assert error["multistep"] < error["ddim"] / 3


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_ancestral_sampling_draws_the_gaussian(gamma: float, generator: torch.Generator) -> None:
    n = 50_000
    times = torch.linspace(1, 0, 400, dtype=torch.float64)
    epsilon = gaussian_epsilon(1.5, 0.3, times)
    z = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    end = ancestral(epsilon, z, SCHEDULE, times, gamma=gamma, generator=generator)  # type: ignore[arg-type]
    # The start is N(0, I) instead of N(.0778 mean, ...): a bias of one per cent remains.
    assert abs(float(end.mean()) - 1.5) < 3 * math.sqrt(0.3 / n) + 0.015
    assert abs(float(end.var()) - 0.3) < 3 * 0.3 * math.sqrt(2 / n) + 0.01


def test_bad_input_is_one_clear_sentence() -> None:
    times = torch.linspace(1, 0, 3)
    with pytest.raises(BadInput, match="gamma must lie"):
        ancestral(lambda z, i: z, torch.zeros(2, 1), SCHEDULE, times, gamma=1.5)
    with pytest.raises(BadInput, match="solver must be one of"):
        solve(lambda z, i: z, torch.zeros(2, 1), SCHEDULE, 3, "rk4")
    assert set(SOLVERS) == {"ddim", "multistep"}
