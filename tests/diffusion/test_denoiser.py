"""The denoiser against its plain equations, the samplers against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from azula.denoise import Denoiser, DiracPosterior
from azula.sample import DDIMSampler, vABSampler
from torch import Tensor

from damc import BadInput
from damc.amortize import Amortizer
from damc.diffusion.denoiser import VectorDenoiser, epsilon_loss
from damc.diffusion.sampling import SOLVERS, ancestral, solve
from damc.diffusion.schedule import TruncatedCosine
from tests.reference import sampling as plain

SCHEDULE = TruncatedCosine()


@pytest.mark.parametrize(
    ("dim", "embedding", "count"),
    [
        (100, 1024, 3_066_424),
        (128, 1024, 3_143_424),
        (8, 1024, 2_841_024),
        (2, 128, 1_679_122),
    ],
)
def test_parameter_counts_are_the_papers(dim: int, embedding: int, count: int) -> None:
    assert sum(p.numel() for p in VectorDenoiser(dim, embedding).parameters()) == count


@pytest.mark.parametrize(
    ("f", "millions"), [(1 / 4, 0.71), (1 / 2, 1.36), (1, 3.14), (2, 8.69), (4, 27.6)]
)
def test_capacity_widens_the_network(f: float, millions: float) -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in VectorDenoiser(128, capacity=f).parameters())
    assert abs(count / 1e6 - millions) < 0.01 * millions


def test_the_inversion_network_has_the_published_size() -> None:
    with torch.device("meta"):
        net = VectorDenoiser(7168, 7168, widths=(1024, 1024, 1024))
    assert sum(p.numel() for p in net.parameters()) == 311_644_416


def test_merged_products_are_the_block_equations(generator: torch.Generator) -> None:
    net = VectorDenoiser(6, 16).double()
    z, condition = (torch.randn(9, n, dtype=torch.float64, generator=generator) for n in (6, 16))
    angle = torch.rand(9, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(net(z, angle, condition), plain.denoise(net, z, angle, condition))


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_cached_shares_agree_with_the_plain_network(
    threads: int | None, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = VectorDenoiser(6, 16)
    z, condition = torch.randn(9, 6, generator=generator), torch.randn(9, 16, generator=generator)
    angles = SCHEDULE.angle(torch.linspace(1, 0, 4))
    share, times = net.condition_share(condition), net.time_share(angles)
    weights = net.weights()
    if threads:
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)  # decides the layout
        weights = weights.laid_out(9)
    for i, angle in enumerate(angles):
        with torch.set_grad_enabled(threads is None):
            cached = net.blocks(z, net.modulation(share + times[i], weights), weights)
        torch.testing.assert_close(
            cached, plain.denoise(net, z, angle.expand(9), condition), atol=1e-5, rtol=1e-5
        )


def test_float32_agrees_with_float64(generator: torch.Generator) -> None:
    net = VectorDenoiser(6, 16)
    z, condition = torch.randn(9, 6, generator=generator), torch.randn(9, 16, generator=generator)
    angle = torch.rand(9, generator=generator)
    single = net(z, angle, condition)
    double = net.double()(z.double(), angle.double(), condition.double())
    torch.testing.assert_close(single.double(), double, atol=1e-4, rtol=1e-4)


def test_a_shared_condition_may_have_one_row(generator: torch.Generator) -> None:
    net = VectorDenoiser(3, 8)
    z, row = torch.randn(5, 3, generator=generator), torch.randn(1, 8, generator=generator)
    angle = torch.rand(5, generator=generator)
    torch.testing.assert_close(net(z, angle, row), net(z, angle, row.expand(5, 8)))


def test_the_loss_is_half_the_squared_norm() -> None:
    a, b = torch.zeros(4, 3), torch.tensor([[1.0, 2, 2]]).expand(4, 3)
    assert float(epsilon_loss(a, b)) == 4.5


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
    [("ddim", 100, 0.02), ("heun", 20, 0.02), ("multistep", 20, 0.02)],
)
def test_solvers_follow_a_gaussians_flow(solver: str, steps: int, tolerance: float) -> None:
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    exact = flow(z, 1.5, 0.3)
    errors = []
    for n in (steps // 2, steps):
        times = torch.linspace(1, 0, n + 1, dtype=torch.float64)
        end = solve(gaussian_epsilon(1.5, 0.3, times), z, SCHEDULE, n, solver)  # type: ignore[arg-type]
        errors.append(float((end - exact).abs().max()))
    assert errors[1] < tolerance
    assert errors[1] < errors[0] / (1.7 if solver == "ddim" else 2.8)  # first and second order


@pytest.mark.parametrize("solver", ["ddim", "multistep"])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_flow_is_followed_as_azula_follows_it(solver: str, steps: int) -> None:
    def epsilon(z: Tensor, i: int) -> Tensor:
        return torch.sin(3 * z + i) + z.flip(1) / 2

    class OnGrid(Denoiser):  # type: ignore[misc]
        schedule, calls = SCHEDULE, 0

        def forward(self, x_t: Tensor, t: Tensor) -> DiracPosterior:
            alpha, sigma = SCHEDULE(t)
            self.calls += 1
            return DiracPosterior(mean=(x_t - sigma * epsilon(x_t, self.calls - 1)) / alpha)

    grid = {"steps": steps, "silent": True, "dtype": torch.float64}
    other = {"ddim": DDIMSampler(OnGrid(), **grid), "multistep": vABSampler(OnGrid(), 2, **grid)}
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = z.clone()
    torch.testing.assert_close(solve(epsilon, z, SCHEDULE, steps, solver), other[solver](z))
    assert torch.equal(z, kept)


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
    with pytest.raises(BadInput, match="positive integers"):
        VectorDenoiser(0)
    assert set(SOLVERS) == {"ddim", "heun", "multistep"}


def test_residual_adds_the_noisy_point_to_the_prediction() -> None:
    torch.manual_seed(0)
    net = VectorDenoiser(3, 8, capacity=0.1)
    z, angle, condition = torch.randn(4, 3), torch.tensor(0.7), torch.randn(4, 8)
    with torch.no_grad():
        added = net(z, angle, condition)
        net.residual = False
        assert torch.allclose(added - z, net(z, angle, condition), atol=1e-6)
    assert not Amortizer(3, residual=False).denoiser.residual
