"""Targets: what may be given, how targets combine, and what a wrong one is told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc import MALA, BadInput, EnergyPrior, Langevin, Posterior, product, tempered
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


class Analytic:
    """A log-density that autograd cannot see through, with its gradient."""

    def log_prob(self, z: Tensor, *x: Tensor) -> Tensor:
        return gaussian(z - sum(x)).detach()

    def value_and_grad(self, z: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(z, *x), -(z - sum(x))


@pytest.mark.parametrize(
    "target",
    [
        Analytic(),
        as_log_prob(Analytic()),
        as_log_prob(Analytic(), torch.zeros(2, 2)),
        tempered(Analytic(), 1.0),
        product(Analytic()),
        Posterior(Analytic(), lambda x, z: 0 * z.sum(1), torch.zeros(2, 2)),
    ],
    ids=["object", "as_log_prob", "with its context", "tempered", "product", "posterior"],
)
def test_a_gradient_beside_log_prob_is_used_and_kept(target: object) -> None:
    z = torch.ones(2, 2)
    kernels = (Langevin(0.1, 1, noise=False), MALA(0.1, 1))
    state, _ = kernels[0].run(z, target)
    torch.testing.assert_close(state.z, z * (1 - 0.1**2 / 2))
    for kernel in kernels:
        kernel.run(z, target)  # autograd would refuse: the value has no graph


def test_combined_gradients_are_those_of_the_combination() -> None:
    z, x = torch.randn(4, 2), torch.randn(4, 2)

    def cubic(z: Tensor, x: Tensor) -> Tensor:
        return -(z - x).abs().pow(3).sum(1)

    combined = as_log_prob(tempered(product(Analytic(), cubic), 3.0), x)
    plain = as_log_prob(lambda z, x: (gaussian(z - x) + cubic(z, x)) / 3, x)
    for ours, autograds in zip(value_and_grad(combined, z), value_and_grad(plain, z), strict=True):
        torch.testing.assert_close(ours, autograds)
    torch.testing.assert_close(combined(z), plain(z))
    assert combined.value_and_grad(z)[1].shape == z.shape  # type: ignore[attr-defined]


def test_a_gradient_of_another_shape_is_refused() -> None:
    class Wrong(Analytic):
        def value_and_grad(self, z: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
            return gaussian(z), -z.sum(1)

    with pytest.raises(BadInput, match=r"gradients of shape \(4, 2\), got \(4,\)"):
        Langevin(0.1, 2).run(torch.randn(4, 2), Wrong())


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (3.0, "log_prob method"),
        (lambda z: -z.square() / 2, r"got shape \(4, 2\)"),
        (lambda z: gaussian(z)[:2], r"got shape \(2,\)"),
        (lambda z: gaussian(z).sum(), r"got shape \(\)"),
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
