"""Pulled-back gradients are autograd's, layer by layer and network by network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc import EnergyPrior, Langevin, LatentModel
from damc.density import value_and_grad
from damc.fast.frozen import frozen
from damc.fast.gradients import pullback, without_shuffle
from damc.nets import (
    DECODERS,
    HYBRIDS,
    conv_decoder,
    mlp_conv_decoder,
    mlp_decoder,
    mlp_energy,
)


class Squares(nn.Module):
    """A layer that has no rule."""

    def forward(self, z: Tensor) -> Tensor:
        return z.square()


LAYERS = [
    nn.Linear(4, 3),
    nn.Linear(4, 3, bias=False),
    nn.LeakyReLU(0.3),
    nn.ReLU(),
    nn.Tanh(),
    nn.SiLU(),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.Unflatten(1, (2, 2)),
    nn.Softplus(),  # no rule of its own
    nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ELU(), nn.Linear(4, 2)), nn.Tanh()),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_rule_is_autograds(layer: nn.Module) -> None:
    layer.double()
    h = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    y = layer(h)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, h, grad)
    evaluate = pullback(layer)
    with torch.no_grad():
        value, pull = evaluate(h.detach())
    torch.testing.assert_close(value, y.detach())
    pulled = pull(grad)
    torch.testing.assert_close(pulled, expected)
    assert not value.requires_grad and not pulled.requires_grad


def test_the_tanh_of_32_bit_numbers_is_right_to_rounding() -> None:
    h = torch.cat(
        [torch.linspace(-12, 12, 4001), torch.tensor([-torch.inf, -1e38, 1e38, torch.inf])]
    )
    identity = nn.Linear(1, 1, bias=False)  # its result belongs to the tanh, which overwrites it
    nn.init.ones_(identity.weight)
    value, pull = pullback(nn.Sequential(identity, nn.Tanh()))(h[:, None])
    exact = h.double().tanh()[:, None]
    eps = torch.finfo(torch.float32).eps
    assert (value - exact).abs().max() <= 2 * eps
    assert (pull(torch.ones_like(value)) - (1 - exact.square())).abs().max() <= 4 * eps


@pytest.mark.parametrize("activation", ["lrelu", "relu", "gelu", "silu", "tanh"])
@pytest.mark.parametrize("spectral_norm", [False, True])
def test_the_energys_gradient_needs_no_graph(activation: str, spectral_norm: bool) -> None:
    energy = mlp_energy(5, (7, 6), activation, spectral_norm).double().eval()
    prior = EnergyPrior(energy)
    z = torch.randn(9, 5, dtype=torch.float64)
    for ours, autograds in zip(
        value_and_grad(frozen(prior), z), value_and_grad(prior.log_prob, z), strict=True
    ):
        torch.testing.assert_close(ours, autograds)


def test_a_frozen_target_knows_the_weights_of_its_run() -> None:
    energy = mlp_energy(3, (4,))
    prior, z = EnergyPrior(energy), torch.zeros(2, 3)
    before, _ = Langevin(0.1, 1, noise=False).run(z, prior)
    with torch.no_grad():
        for p in energy.parameters():
            p.mul_(2)
    after, _ = Langevin(0.1, 1, noise=False).run(z, prior)
    assert not after.z.allclose(before.z)


@pytest.mark.parametrize(
    "decoder",
    [
        mlp_decoder(4, (1, 8, 8), (6,)),
        mlp_decoder(4, (3, 8, 6), (6,)),  # whose last linear layer makes maps
        mlp_conv_decoder(4, (3, 8, 8), HYBRIDS["quarter"], (6,), 2),
        nn.Linear(4, 10),
        Squares(),  # no rule: autograd throughout
    ],
)
@pytest.mark.parametrize("energy", [True, False])
def test_the_posteriors_gradient_is_that_of_the_joint(decoder: nn.Module, energy: bool) -> None:
    model = LatentModel(decoder, mlp_energy(4, (5,)) if energy else None, 4, 0.3).double()
    z = torch.randn(6, 4, dtype=torch.float64)
    x = torch.randn_like(model.decoder(z).detach())
    ours = value_and_grad(frozen(model.posterior(x)), z)
    autograds = value_and_grad(lambda z: model.log_joint(z, x), z)
    for a, b in zip(ours, autograds, strict=True):
        torch.testing.assert_close(a, b)


def test_weights_are_left_alone() -> None:
    model = LatentModel(mlp_decoder(3, (5,), (4,)), mlp_energy(3, (4,)), 3, 0.3)
    before = [p.detach().clone() for p in model.parameters()]
    Langevin(0.1, 3).run(torch.zeros(2, 3), model.posterior(torch.ones(2, 5)))
    for p, old in zip(model.parameters(), before, strict=True):
        assert p.equal(old) and p.grad is None and p.requires_grad


def test_an_energy_of_the_users_own_goes_through_autograd() -> None:
    class Own(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z.pow(4).sum(1)

    z = torch.randn(5, 2)
    _, grad = value_and_grad(frozen(EnergyPrior(Own())), z)
    torch.testing.assert_close(grad, -z - 4 * z.pow(3))


@pytest.mark.parametrize("name", DECODERS)
def test_the_papers_decoders_pull_back_what_autograd_does(
    name: str, generator: torch.Generator
) -> None:
    """All their layers, the first one's product included, in the layouts of the fast path."""
    decoder = conv_decoder(5, DECODERS[name], 3, width=1).double()
    z = torch.randn(2, 5, dtype=torch.float64, generator=generator)
    y, pull = pullback(decoder)(z)
    grad = torch.randn(y.shape, dtype=torch.float64, generator=generator)
    z.requires_grad_()
    expected = decoder(z)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-12)
    (gradient,) = torch.autograd.grad(expected, z, grad)
    torch.testing.assert_close(pull(grad), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", HYBRIDS)
def test_hybrid_decoders_pull_back_what_autograd_does(
    rows: str, generator: torch.Generator
) -> None:
    """Maps that linear layers make come out in their order, whatever the layout behind it."""
    decoder = mlp_conv_decoder(5, (3, 8, 12), HYBRIDS[rows], (7,), 2).double()
    z = torch.randn(2, 5, dtype=torch.float64, generator=generator)
    y, pull = pullback(decoder)(z)
    grad = torch.randn(y.shape, dtype=torch.float64, generator=generator)
    (gradient,) = torch.autograd.grad(decoder(z.requires_grad_()), z, grad)
    torch.testing.assert_close(y, decoder(z).detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(pull(grad), gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("first", [nn.LeakyReLU(0.2), nn.ReLU(), nn.Tanh(), nn.Softplus()], ids=str)
def test_what_it_is_given_is_left_alone(first: nn.Module) -> None:
    """Activations work in place where nobody else reads: not on the caller's points, nor on what
    a layer before them needs for its own gradient."""
    net = nn.Sequential(first, nn.Tanh(), nn.LeakyReLU(0.2), nn.Linear(4, 4), nn.Tanh()).double()
    h = torch.randn(6, 4, dtype=torch.float64)
    before = h.clone()
    y, pull = pullback(net)(h)
    assert h.equal(before)
    expected = net(h.requires_grad_())
    grad = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(expected, h, grad)
    torch.testing.assert_close(y, expected.detach())
    torch.testing.assert_close(pull(grad), gradient)


def test_a_last_shuffle_is_left_out_only_where_pixels_keep_their_values() -> None:
    conv, shuffle = nn.Conv2d(2, 12, 3, padding=1), nn.PixelShuffle(2)
    rest, factor = without_shuffle(nn.Sequential(conv, shuffle, nn.Tanh()))
    x = torch.randn(1, 2, 4, 4)
    assert factor == 2
    torch.testing.assert_close(nn.functional.pixel_shuffle(rest(x), 2), shuffle(conv(x)).tanh())
    for last in (nn.Conv2d(3, 3, 1), nn.Softmax(1)):
        net = nn.Sequential(conv, shuffle, last)
        assert without_shuffle(net) == (net, 1)
    assert without_shuffle(nn.Sequential())[1] == 1
