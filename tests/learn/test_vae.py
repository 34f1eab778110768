"""The VAE: with linear networks it is probabilistic PCA, whose optimum is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput, LatentModel
from damc.learn import vae
from damc.learn.vae import VAE, VAESettings, divergence

D, LATENT = 5, 2


def data() -> Tensor:
    """Points around a plane in five dimensions, turned out of the axes and off the origin."""
    generator = torch.Generator().manual_seed(0)
    turn, _ = torch.linalg.qr(torch.randn(D, D, generator=generator))
    scales = torch.tensor([2.0, 1.2, 0.3, 0.3, 0.3])
    return torch.randn(512, D, generator=generator) * scales @ turn + 0.5


def linear_vae(x: Tensor, **changes: Any) -> VAE:
    """A linear VAE trained on all of x in every iteration."""
    usual = {"sigma": 0.5, "decoder_rate": 0.1, "beta1": 0.9, "decay": "cosine", "horizon": 1000}
    settings = VAESettings(**{**usual, **changes})
    model = LatentModel(nn.Linear(LATENT, D), None, LATENT, settings.sigma)
    learner = VAE(model, nn.Linear(D, 2 * LATENT), settings)
    generator = torch.Generator().manual_seed(1)
    for _ in range(settings.horizon):
        learner.step(x, torch.arange(len(x)), generator)
    return learner


def principal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, falling, and eigenvectors, as columns, of the covariance."""
    values, vectors = torch.linalg.eigh(torch.cov(x.T, correction=0))
    return values.flip(0), vectors.flip(1)


def test_a_linear_vae_finds_the_principal_plane_and_the_best_bound() -> None:
    x, sigma = data(), 0.5
    learner = linear_vae(x, score_draws=100)
    values, vectors = principal(x)
    weight = learner.model.decoder.weight.detach()  # type: ignore[union-attr]
    outside = weight - vectors[:, :2] @ vectors[:, :2].T @ weight
    assert float(outside.norm() / weight.norm()) < 0.03
    # W W^T has the eigenvalues of the data above sigma^2 (Tipping and Bishop 1999, equation 7).
    found = torch.linalg.svdvals(weight).square()
    torch.testing.assert_close(found, values[:2] - sigma**2, rtol=0.05, atol=0.0)
    # At the optimum the bound is tight (Lucas et al. 2019): it is the likelihood of that Gaussian.
    likely = vectors[:, :2] * (values[:2] - sigma**2) @ vectors[:, :2].T + sigma**2 * torch.eye(D)
    best = torch.distributions.MultivariateNormal(x.mean(0), likely).log_prob(x).mean()
    bound = learner.anomaly_score(x, generator=torch.Generator().manual_seed(2)).mean()
    bound = bound + D / 2 * math.log(2 * math.pi)
    assert float(bound) >= float(-best) - 0.01
    assert float(bound) == pytest.approx(float(-best), abs=0.03)


def test_without_the_divergence_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vae, "divergence", lambda m, log_v: 0 * divergence(m, log_v))
    x = data()
    learner = linear_vae(x, horizon=150)
    weight = learner.model.decoder.weight.detach()  # type: ignore[union-attr]
    found = torch.linalg.svdvals(weight).square()
    assert float((found / (principal(x)[0][:2] - 0.25) - 1).abs().max()) > 0.2


def test_a_learned_sigma_is_that_of_probabilistic_pca() -> None:
    """The mean of the eigenvalues left out (Tipping and Bishop 1999, equation 8)."""
    x = data()
    learner = linear_vae(x, sigma=1.0, learn_sigma=True)
    left_out = float(principal(x)[0][2:].mean())
    assert float(learner.variance.detach()) == pytest.approx(left_out, rel=0.05)
    assert float(linear_vae(x, sigma=1.0, horizon=2).variance) == 1.0


def test_the_divergence_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    m, log_v = torch.randn(2, 4, 3, generator=generator)
    q = torch.distributions.Normal(m, (log_v / 2).exp())
    p = torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(divergence(m, log_v), torch.distributions.kl_divergence(q, p).sum(1))


def test_the_loss_is_the_bound_and_costs_one_pass() -> None:
    """Weights move along the gradient of |x - g(z)|^2 + 2 sigma^2 KL, as Algorithm 1 scales it."""
    x = data()[:8]
    learner = linear_vae(x, horizon=1)
    m, log_v = learner.encode(x)
    generator = torch.Generator().manual_seed(3)
    z = vae.draw(m, log_v, generator)
    loss = (x - learner.model.decoder(z)).square().sum(1).mean()
    loss = loss + 2 * 0.5**2 * divergence(m, log_v).mean()
    expected = torch.autograd.grad(loss, list(learner.parameters()))
    seen: list[Tensor] = []
    learner.optimizers.average = lambda gradients: seen.extend(g.clone() for g in gradients)
    passes: list[int] = []
    learner.model.decoder.register_forward_hook(lambda *_: passes.append(1))
    learner.step(x, torch.arange(8), torch.Generator().manual_seed(3))
    for a, b in zip(seen, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert len(passes) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sigma": 0.0}, "sigma must be positive"),
        ({"decoder_rate": -1.0}, "decoder_rate must be positive"),
        ({"score_draws": 0}, "score_draws must be at least 1"),
        ({"decay": "linear"}, "decay must be"),
    ],
)
def test_bad_settings_are_one_clear_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        VAESettings(**change)
