"""Targets: what may be given, how targets combine, and what a wrong one is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput, EnergyPrior, Langevin, Posterior, product, tempered
from damc.density import as_log_prob, value_and_grad


def gaussian(z: Tensor) -> Tensor:
    return -z.square().sum(1) / 2


def test_distributions_modules_and_callables_give_the_same_target() -> None:
    z = torch.randn(5, 3, dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    )
    _, expected = value_and_grad(gaussian, z)
    for target in (normal, EnergyPrior(), gaussian):
        _, grad = value_and_grad(as_log_prob(target), z)
        torch.testing.assert_close(grad, expected)


def test_tempering_and_products_compose() -> None:
    z, x = torch.randn(4, 2), torch.randn(4, 2)

    def likelihood(z: Tensor, x: Tensor) -> Tensor:
        return -(z - x).square().sum(1)

    def prior(z: Tensor, x: Tensor) -> Tensor:
        return gaussian(z)

    composed = tempered(product(prior, likelihood), 2.0)
    torch.testing.assert_close(
        as_log_prob(composed, x)(z), (gaussian(z) - (z - x).square().sum(1)) / 2
    )
    assert tempered(gaussian, 1.0)(z).equal(gaussian(z))


def test_posterior_adds_prior_and_likelihood() -> None:
    z, x = torch.randn(4, 2), torch.randn(4, 2)
    posterior = Posterior(EnergyPrior(), lambda x, z: -(x - z).abs().sum(1), x)
    torch.testing.assert_close(posterior(z), gaussian(z) - (x - z).abs().sum(1))


def test_energy_tilts_the_gaussian_with_its_sign() -> None:
    class Sum(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z.sum(1)

    z = torch.randn(4, 2)
    torch.testing.assert_close(EnergyPrior(Sum()).log_prob(z), gaussian(z) - z.sum(1))


def test_gradients_reach_z_and_never_the_weights() -> None:
    layer = nn.Linear(2, 1)
    value, grad = value_and_grad(lambda z: layer(z).squeeze(1), torch.randn(3, 2))
    torch.testing.assert_close(grad, layer.weight.detach().expand(3, 2))
    assert layer.weight.grad is None and not value.requires_grad and not grad.requires_grad


def test_a_targets_own_gradient_is_used() -> None:
    class Own:
        def __call__(self, z: Tensor) -> Tensor:
            raise AssertionError("autograd must not be needed")

        def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
            return gaussian(z), -z

    z = torch.ones(2, 2)
    state, _ = Langevin(0.1, 1, noise=False).run(z, Own())
    torch.testing.assert_close(state.z, z * (1 - 0.1**2 / 2))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (3.0, "log_prob method"),
        (lambda z: -z.square() / 2, r"gave shape \(4, 2\)"),
        (lambda z: gaussian(z)[:2], r"gave shape \(2,\)"),
        (lambda z: gaussian(z).sum(), r"gave shape \(\)"),
        (lambda z: torch.zeros(len(z)), "does not depend on z"),
    ],
)
def test_a_wrong_target_is_one_clear_sentence(target: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Langevin(0.1, 2).run(torch.randn(4, 2), target)


def test_temperature_must_be_positive_and_products_not_empty() -> None:
    with pytest.raises(BadInput, match="temperature must be positive"):
        tempered(gaussian, 0.0)
    with pytest.raises(BadInput, match="at least one target"):
        product()
