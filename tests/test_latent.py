"""The latent model, where a linear decoder and a Gaussian prior make everything exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from damc import MALA, BadInput, Langevin, LatentModel

D, SIGMA, CHAINS = 3, 0.7, 12_000


@pytest.fixture
def linear() -> LatentModel:
    """x = A z + N(0, sigma^2 I), z ~ N(0, I): the posterior is Gaussian."""
    decoder = nn.Linear(D, 5, bias=False).double()
    return LatentModel(decoder, None, D, SIGMA)


def exact(model: LatentModel, x: Tensor) -> tuple[Tensor, Tensor]:
    a = model.decoder.weight.detach()  # type: ignore[union-attr]
    covariance = torch.linalg.inv(torch.eye(D, dtype=a.dtype) + a.T @ a / SIGMA**2)  # type: ignore[operator, union-attr]
    return x @ a @ covariance / SIGMA**2, covariance  # type: ignore[operator]


def deviations(z: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """The largest error of a mean or covariance, in its standard errors."""
    n = len(z)
    of_mean = (z.mean(0) - mean) / (covariance.diagonal() / n).sqrt()
    variance = covariance.diagonal()
    spread = ((covariance**2 + variance[:, None] * variance) / n).sqrt()
    of_covariance = (torch.cov(z.T) - covariance) / spread
    return float(torch.cat([of_mean, of_covariance.flatten()]).abs().max())


def test_chains_reach_the_exact_gaussian_posterior(
    linear: LatentModel, generator: torch.Generator
) -> None:
    x = torch.randn(1, 5, dtype=torch.float64, generator=generator)
    mean, covariance = exact(linear, x)
    start = torch.randn(CHAINS, D, dtype=torch.float64, generator=generator)
    posterior = linear.posterior(x.expand(CHAINS, 5))
    state, _ = MALA(0.8, 60).run(start, posterior, generator)
    assert deviations(state.z, mean[0], covariance) < 4
    # Power: the same chains are far from the posterior of another noise level.
    wrong = LatentModel(linear.decoder, None, D, SIGMA * 1.2)
    state, _ = MALA(0.8, 60).run(start, wrong.posterior(x.expand(CHAINS, 5)), generator)
    assert deviations(state.z, mean[0], covariance) > 4


def test_the_unadjusted_chain_has_its_known_bias_here_too(
    linear: LatentModel, generator: torch.Generator
) -> None:
    x = torch.randn(1, 5, dtype=torch.float64, generator=generator)
    mean, covariance = exact(linear, x)
    s = 0.5
    start = torch.randn(CHAINS, D, dtype=torch.float64, generator=generator)
    state, _ = Langevin(s, 80).run(start, linear.posterior(x.expand(CHAINS, 5)), generator)
    precision = torch.linalg.inv(covariance)
    biased = torch.linalg.inv(precision @ (torch.eye(D, dtype=x.dtype) - s**2 / 4 * precision))
    assert deviations(state.z, mean[0], biased) < 4
    assert deviations(state.z, mean[0], covariance) > 4


def test_densities_add_up(generator: torch.Generator) -> None:
    energy = nn.Sequential(nn.Linear(D, 1), nn.Flatten(0))
    model = LatentModel(nn.Linear(D, 5), energy, D, SIGMA)
    z, x = torch.randn(4, D, generator=generator), torch.randn(4, 5, generator=generator)
    error = (x - model.decoder(z)).square().sum(1)
    torch.testing.assert_close(model.log_likelihood(x, z), -error / (2 * SIGMA**2))
    expected = -error / (2 * SIGMA**2) - energy(z) - z.square().sum(1) / 2
    torch.testing.assert_close(model.log_joint(z, x), expected)
    torch.testing.assert_close(model.posterior(x)(z), expected)


def test_images_are_summed_over_all_pixels() -> None:
    decoder = nn.Sequential(nn.Linear(D, 12), nn.Unflatten(1, (3, 2, 2)))
    model = LatentModel(decoder, None, D, 1.0)
    z, x = torch.zeros(2, D), torch.zeros(2, 3, 2, 2)
    with torch.no_grad():
        decoder[0].bias.fill_(0.5)
    assert model.squared_error(x, z).tolist() == pytest.approx([12 * 0.25] * 2)


@pytest.mark.parametrize(("latent_dim", "sigma"), [(0, 1.0), (2, 0.0), (2, math.nan)])
def test_bad_input_is_one_clear_sentence(latent_dim: int, sigma: float) -> None:
    with pytest.raises(BadInput, match="latent_dim and sigma must be positive"):
        LatentModel(nn.Identity(), None, latent_dim, sigma)
