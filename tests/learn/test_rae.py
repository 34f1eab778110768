"""The regularized auto-encoder: its density is one, its penalties are what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput
from damc.amortize.mixture import GaussianMixture
from damc.learn.rae import RAE, RAESettings

X = torch.rand(64, 1, 3, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1


def make(latent_dim: int = 2, **changes: Any) -> RAE:
    torch.manual_seed(0)
    decoder = nn.Sequential(
        nn.Linear(latent_dim, 8), nn.Tanh(), nn.Linear(8, 9), nn.Unflatten(1, (1, 3, 3))
    )
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(9, latent_dim))
    settings = RAESettings(**{"horizon": 10, "ring": 200, **changes})
    return RAE(encoder, decoder, latent_dim, settings)


def run(learner: RAE, iterations: int) -> RAE:
    for k in range(iterations):
        learner.step(X, torch.arange(64), torch.Generator().manual_seed(k))
    return learner


def integral(density: GaussianMixture) -> float:
    """Of a density in two dimensions, over a grid seven deviations beyond its means."""
    beyond = 7 * float(density.factors.square().sum(2).max().sqrt())
    low, high = density.means.min(0).values - beyond, density.means.max(0).values + beyond
    axes = [torch.linspace(float(a), float(b), 400) for a, b in zip(low, high, strict=True)]
    cell = float((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))
    z = torch.cartesian_prod(*axes).to(density.means)
    return float(density.log_prob(z).exp().sum() * cell)


def test_the_density_of_its_codes_integrates_to_one() -> None:
    learner = run(make(), 10).double()
    density = learner.density()
    assert len(density.weights) == 10
    assert integral(density) == pytest.approx(1.0, abs=1e-4)
    twice = GaussianMixture(2 * density.weights, density.means, density.factors)
    assert integral(twice) == pytest.approx(2.0, abs=1e-4)  # the integral has power


def test_the_mixture_is_that_of_torch_and_its_draws_have_its_moments() -> None:
    generator = torch.Generator().manual_seed(1)
    factors = torch.randn(3, 2, 2, generator=generator).tril()
    factors.diagonal(dim1=1, dim2=2).abs_().add_(0.3)
    weights, means = torch.tensor([0.5, 0.3, 0.2]), torch.randn(3, 2, generator=generator) * 2
    mixture = GaussianMixture(weights, means, factors)
    components = torch.distributions.MultivariateNormal(means, scale_tril=factors)
    known = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(weights), components
    )
    z = torch.randn(50, 2, generator=generator)
    torch.testing.assert_close(mixture.log_prob(z), known.log_prob(z))
    draws = mixture.sample(20_000, generator)
    error = (known.variance / 20_000).sqrt()
    assert bool(((draws.mean(0) - known.mean).abs() < 4 * error).all())
    torch.testing.assert_close(draws.var(0), known.variance, rtol=0.06, atol=0.0)


def test_the_mixture_finds_heaps_that_one_gaussian_misses() -> None:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(600, 2, generator=generator) * 0.1
    z[:300] += 3
    one, two = (GaussianMixture.fit(z, k).log_prob(z).mean() for k in (1, 2))
    assert float(two - one) > 1.0
    assert len(GaussianMixture.fit(z[:7], 10).weights) == 2  # too few points for ten


def test_one_gaussian_until_the_codes_have_settled() -> None:
    learner = run(make(first=0.5), 4)
    assert len(learner.density().weights) == 1
    assert len(run(learner, 1).density().weights) == 10


def test_the_ring_holds_the_latest_codes() -> None:
    learner = make(ring=100)
    seen = []
    for k in range(3):
        seen.append(learner.infer(X))
        learner.step(X, torch.arange(64), torch.Generator().manual_seed(k))
    latest = torch.cat(seen)[-100:]
    assert int(learner.store.written) == 192
    order = (learner.store.written - 100 + torch.arange(100)) % 100
    torch.testing.assert_close(learner.store.points[order], latest)


def test_the_gradient_penalty_is_the_jacobian_s_without_bias() -> None:
    learner = make(regularizer="gradient")
    z = learner.infer(X[:1]).repeat(20_000, 1).requires_grad_()
    image = learner.decode(z)
    penalty = learner._penalty(z, image, torch.Generator().manual_seed(3))
    jacobian: Tensor = torch.autograd.functional.jacobian(learner.decode, z[:1].detach())
    assert float(penalty.detach()) == pytest.approx(float(jacobian.square().sum()) / 4, rel=0.05)


@pytest.mark.parametrize("regularizer", ["l2", "gradient"])
def test_a_strong_penalty_flattens_the_decoder(regularizer: str) -> None:
    sizes = []
    for strength in (0.0, 1.0):
        learner = make(regularizer=regularizer, strength=strength, decoder_rate=1e-2)
        run(learner, 30)
        jacobian = torch.autograd.functional.jacobian(learner.decode, learner.infer(X[:1]))
        sizes.append(float(jacobian.square().sum()))
    assert sizes[1] < sizes[0] / 2


def test_spectral_norm_bounds_every_layer_and_looking_moves_nothing() -> None:
    learner = run(make(regularizer="spectral"), 30)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    learner.train().sample(3, generator=torch.Generator().manual_seed(0))
    learner.train().reconstruct(X)
    assert all(before[name].equal(value) for name, value in learner.state_dict().items())
    for layer in learner.decoder.eval():  # type: ignore[operator]
        if isinstance(layer, nn.Linear):
            assert float(torch.linalg.matrix_norm(layer.weight.detach(), 2)) < 1.05
    largest = max(
        float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
        for layer in run(make(decoder_rate=0.1), 30).decoder  # type: ignore[union-attr]
        if isinstance(layer, nn.Linear)
    )
    assert largest > 1.05


def test_loading_forgets_the_density_of_other_codes() -> None:
    learner, other = run(make(), 3), run(make(), 5)
    learner.density()
    learner.load_state_dict(other.state_dict())
    assert learner.density().means.equal(other.density().means)


def test_bad_settings_are_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="regularizer must be 'l2' or 'gradient'"):
        RAESettings(regularizer="l1")
    with pytest.raises(BadInput, match="beta must not be negative"):
        RAESettings(beta=-1.0)
    with pytest.raises(BadInput, match=r"first must lie in \[0, 1\)"):
        RAESettings(first=1.0)
