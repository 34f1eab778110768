from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from damc.errors import BadInput
from damc.toy.problem import GridPosterior, NeuralLikelihood, ToyModel


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear_toy(matrix: Tensor) -> ToyModel:
    """A toy with `g(z) = A z` and a Gaussian prior: its posterior has a closed form."""
    toy = ToyModel("gaussian").double()
    decoder = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        decoder.weight.copy_(matrix)
    toy.likelihood.decoder = nn.Sequential(decoder).requires_grad_(False)
    return toy


def test_the_network_has_the_stated_shape_and_spread() -> None:
    likelihood = NeuralLikelihood(seed=0)
    linears = [layer for layer in likelihood.decoder if isinstance(layer, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linears] == [
        (128, 2),
        (128, 128),
        (128, 128),
        (2, 128),
    ]
    weights = torch.cat([layer.weight.flatten() for layer in linears])
    biases = torch.cat([layer.bias.flatten() for layer in linears])
    for values, sd in ((weights, 0.2), (biases, 0.1)):
        # The relative error of a sample sd is 1 / sqrt(2 n).
        assert float(values.std()) == pytest.approx(sd, rel=4 / math.sqrt(2 * len(values)))
    assert not any(parameter.requires_grad for parameter in likelihood.parameters())


def test_the_network_comes_from_the_seed_and_leaves_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = NeuralLikelihood(3), NeuralLikelihood(3), NeuralLikelihood(4)
    assert torch.equal(torch.get_rng_state(), before)
    z = torch.randn(5, 2, generator=seeded())
    assert torch.equal(one.decoder(z), same.decoder(z))
    assert not torch.equal(one.decoder(z), other.decoder(z))


def test_observations_and_log_likelihood_agree() -> None:
    likelihood = NeuralLikelihood(0)
    n = 20_000
    z = torch.randn(n, 2, generator=seeded())
    x = likelihood.observe(z, seeded(1))
    # -2 log p is chi-square with two degrees of freedom: mean 2, variance 4.
    statistic = -2 * likelihood.log_prob(x, z)
    assert abs(float(statistic.mean()) - 2) < 4 * 2 / math.sqrt(n)
    x0 = x[0]
    torch.testing.assert_close(
        likelihood.log_prob(x0, z[:3]), likelihood.log_prob(x0.expand(3, 2), z[:3])
    )


def test_draws_come_from_the_pinwheel_under_either_prior() -> None:
    z, x = ToyModel("gaussian", seed=2).draw(6, seeded(5))
    z_too, x_too = ToyModel("pinwheel", seed=2).draw(6, seeded(5))
    assert torch.equal(z, z_too) and torch.equal(x, x_too)
    assert z.shape == x.shape == (6, 2)


@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_a_linear_network_gives_the_closed_form_posterior(scale: float) -> None:
    # At scale 12 the posterior's sd is 0.02, below the side of a cell of the first grid.
    matrix = scale * torch.tensor([[1.0, 0.3], [-0.2, 0.8]], dtype=torch.float64)
    toy = linear_toy(matrix)
    x = matrix @ torch.tensor([0.7, -1.1], dtype=torch.float64)
    posterior = toy.grid_posterior(x, n=200)
    precision = torch.eye(2, dtype=torch.float64) + matrix.T @ matrix / 0.25**2
    covariance = precision.inverse()
    mean = covariance @ matrix.T @ x / 0.25**2
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(2, dtype=torch.float64),
        matrix @ matrix.T + 0.25**2 * torch.eye(2, dtype=torch.float64),
    )
    log_marginal = marginal.log_prob(x)  # type: ignore[no-untyped-call]
    log_evidence = float(log_marginal) + math.log(2 * math.pi * 0.25**2)
    assert posterior.log_evidence == pytest.approx(log_evidence, abs=1e-3)
    torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=0.05, atol=1e-4)
    exact = torch.distributions.MultivariateNormal(mean, covariance)
    z = exact.sample((50,))
    log_prob = exact.log_prob(z)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(posterior.log_prob(z), log_prob, rtol=0, atol=1e-3)


def test_the_box_grows_until_it_holds_the_posterior() -> None:
    toy = linear_toy(torch.eye(2, dtype=torch.float64))
    x = torch.tensor([5.0, 0.0], dtype=torch.float64)
    posterior = toy.grid_posterior(x, n=40, low=-2, high=2)
    assert float(posterior.mean[0]) == pytest.approx(5 / (1 + 0.25**2), abs=1e-3)
    with pytest.raises(BadInput, match="x must be near the observations"):
        toy.grid_posterior(200 * x, n=20)


@pytest.fixture(scope="module")
def toy() -> ToyModel:
    return ToyModel("pinwheel", seed=0)


@pytest.fixture(scope="module")
def observations(toy: ToyModel) -> Tensor:
    return toy.draw(2, seeded(5))[1]


@pytest.fixture(scope="module")
def posteriors(toy: ToyModel, observations: Tensor) -> list[GridPosterior]:
    return toy.grid_posteriors(observations, n=200)


def test_halving_the_cells_does_not_move_the_mass(
    toy: ToyModel, observations: Tensor, posteriors: list[GridPosterior]
) -> None:
    finer = toy.grid_posterior(observations[0], n=300)
    assert finer.log_evidence == pytest.approx(posteriors[0].log_evidence, abs=1e-3)
    torch.testing.assert_close(finer.mean, posteriors[0].mean, rtol=0, atol=2e-3)
    for posterior in posteriors:
        assert posterior.change < 1e-3
        assert float(posterior.mass.sum()) == pytest.approx(1, abs=1e-9)


def test_importance_sampling_from_the_prior_agrees(
    toy: ToyModel, observations: Tensor, posteriors: list[GridPosterior]
) -> None:
    n = 100_000
    z = toy.pinwheel.sample(n, seeded(6))
    mean = toy.likelihood.decoder(z)
    for x, posterior in zip(observations, posteriors, strict=True):
        weight = ((x - mean).square().sum(1) / (-2 * 0.25**2)).exp().double()
        evidence, error = float(weight.mean()), float(weight.std()) / math.sqrt(n)
        assert abs(evidence - math.exp(posterior.log_evidence)) < 4 * error
        # A sigma that is too large by a tenth falls far outside the same error bar.
        wrong = float(weight.pow(1 / 1.1**2).mean())
        assert abs(wrong - math.exp(posterior.log_evidence)) > 8 * error


def test_samples_have_the_moments_of_the_cells(posteriors: list[GridPosterior]) -> None:
    posterior, n = posteriors[0], 20_000
    z = posterior.sample(n, seeded(8))
    error = (posterior.covariance.diagonal() / n).sqrt()
    assert ((z.mean(0) - posterior.mean).abs() < 4 * error).all()
    torch.testing.assert_close(z.T.cov(), posterior.covariance, rtol=0.05, atol=0.02)
    assert torch.equal(z, posterior.sample(n, seeded(8)))
    # The mean of -log p over draws is the entropy of the cells.
    surprise = -posterior.log_prob(z)
    cells = -(posterior.mass * posterior.log_prob(posterior.centers)).sum()
    assert abs(float(surprise.mean() - cells)) < 4 * float(surprise.std()) / math.sqrt(n) + 1e-2


def test_the_posterior_is_differentiable_for_langevin(toy: ToyModel, observations: Tensor) -> None:
    z = toy.pinwheel.sample(2, seeded(9)).requires_grad_()
    value = toy.log_prob(z, observations)
    torch.testing.assert_close(
        value, toy.log_prior(z) + toy.likelihood.log_prob(observations, z), rtol=0, atol=0
    )
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert gradient.shape == z.shape and gradient.isfinite().all()


def test_bad_input_is_refused(toy: ToyModel) -> None:
    with pytest.raises(BadInput, match="prior must be .*got 'uniform'"):
        ToyModel("uniform")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="sigma must be positive, got 0"):
        NeuralLikelihood(0, sigma=0)
    with pytest.raises(BadInput, match=r"x must have shape \(2,\)"):
        toy.grid_posterior(torch.zeros(3, 2))
    with pytest.raises(BadInput, match="the box must contain 0"):
        toy.grid_posteriors(torch.zeros(3, 2), low=1, high=2)
