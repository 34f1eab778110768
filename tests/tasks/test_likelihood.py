"""Likelihoods of latent models against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput, LatentModel
from damc.learn import find_method
from damc.learn.presets import find_preset
from damc.randomness import global_seed
from damc.tasks.likelihood import has_density, likelihood, log_normalizer, log_prob_of_images

D, PIXELS, SIGMA = 6, 40, 0.3


class Tilt(nn.Module):
    """E(z) = a |z - b|^2 / 2, with which everything stays Gaussian."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor(a)), b

    def forward(self, z: Tensor) -> Tensor:
        return self.a * (z - self.b).square().sum(1) / 2


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(energy: nn.Module | None) -> tuple[LatentModel, Tensor]:
    """A linear decoder, and images of it."""
    g = seeded(1)
    decoder = nn.Linear(D, PIXELS)
    with torch.no_grad():
        decoder.weight.copy_(torch.randn(PIXELS, D, generator=g) / 2)
        decoder.bias.copy_(torch.randn(PIXELS, generator=g) / 2)
        x = decoder(torch.randn(5, D, generator=g))
    x = x + SIGMA * torch.randn(x.shape, generator=g)
    return LatentModel(decoder, energy, D, SIGMA), x


def closed_form(model: LatentModel, x: Tensor, mean: float, variance: float) -> Tensor:
    """log p(x) for p(z) = N(mean, variance I)."""
    weight, bias = model.decoder.weight.double(), model.decoder.bias.double()  # type: ignore[operator, union-attr]
    covariance = variance * weight @ weight.T + SIGMA**2 * torch.eye(PIXELS, dtype=torch.double)
    law = torch.distributions.MultivariateNormal(bias + weight.sum(1) * mean, covariance)
    return law.log_prob(x.double()).detach()


def test_a_gaussian_prior_and_a_linear_decoder_give_the_closed_form() -> None:
    model, x = linear(None)
    assert log_normalizer(model.prior, D) == (0.0, 0.0)
    value, error = log_prob_of_images(model, x, torch.zeros(5, D), generator=seeded())
    assert (value - closed_form(model, x, 0.0, 1.0)).abs().max() < 0.05
    assert error.max() < 0.05


def test_a_gaussian_energy_gives_the_closed_form() -> None:
    a, b = 3.0, 1.5
    model, x = linear(Tilt(a, b))
    # exp(-E) N(0, I) is a Gaussian of precision 1 + a around a b / (1 + a), times Z.
    log_z = D * (-math.log(1 + a) / 2 - a * b * b / (2 * (1 + a)))
    found, error = log_normalizer(model.prior, D, generator=seeded())
    assert abs(found - log_z) < 4 * error + 0.01 and error < 0.05
    value, errors = log_prob_of_images(model, x, torch.zeros(5, D), generator=seeded())
    exact = closed_form(model, x, a * b / (1 + a), 1 / (1 + a))
    assert (value - log_z - exact).abs().max() < 0.05 + 4 * float(errors.max())
    # Power: with half the variance the values are off by more than that.
    assert (value - log_z - closed_form(model, x, a * b / (1 + a), 0.5)).abs().min() > 0.5


def test_a_curved_decoder_agrees_with_plain_monte_carlo() -> None:
    with global_seed(0):
        decoder = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 30))
    model = LatentModel(decoder, None, 4, 0.2)
    with torch.no_grad():
        x = decoder(torch.randn(6, 4, generator=seeded())) + 0.2 * torch.randn(
            6, 30, generator=seeded(2)
        )
    many = torch.randn(200_000, 4, generator=seeded(3))
    with torch.no_grad():
        image = decoder(many)
        each = torch.stack([-(row - image).square().sum(1) / (2 * 0.04) for row in x])
    plain = each.double().logsumexp(1) - math.log(200_000) - 15 * math.log(2 * math.pi * 0.04)
    value, error = log_prob_of_images(
        model, x, torch.zeros(6, 4), particles=256, generator=seeded()
    )
    assert (value - plain).abs().max() < 0.2
    assert error.max() < 0.2


def test_a_learner_has_a_likelihood_if_it_has_a_prior_density() -> None:
    preset = find_preset("digits-small")
    with global_seed(0):
        learner = find_method("lebm").from_preset(preset)
        other = find_method("rae").from_preset(preset)
    x = torch.rand(3, 1, 8, 8, generator=seeded()) * 2 - 1
    assert has_density(learner) and not has_density(other)
    found = likelihood(learner, x, particles=16, prior_particles=256)
    assert found.images == 3 and found.sigma == learner.model.sigma
    assert math.isfinite(found.log_prob) and found.estimate_error < 1
    assert found.bits == pytest.approx((-found.log_prob / 64 + math.log(128)) / math.log(2))
    with pytest.raises(BadInput, match="rae has not both"):
        likelihood(other, x)
    with pytest.raises(BadInput, match="particles must be a multiple of 8, got 12"):
        log_prob_of_images(learner.model, x, torch.zeros(3, 8), particles=12)
