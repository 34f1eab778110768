"""The denoiser against its plain equations and the published sizes."""

from __future__ import annotations

import pytest
import torch

from damc import BadInput
from damc.amortize import Amortizer
from damc.diffusion.denoiser import Block, VectorDenoiser, epsilon_loss
from tests.reference import sampling as plain


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


def test_the_network_is_its_block_equations(generator: torch.Generator) -> None:
    net = VectorDenoiser(6, 16).double()
    z, condition = (torch.randn(9, n, dtype=torch.float64, generator=generator) for n in (6, 16))
    angle = torch.rand(9, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(net(z, angle, condition), plain.denoise(net, z, angle, condition))


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


def test_sizes_must_be_positive() -> None:
    with pytest.raises(BadInput, match="positive integers"):
        VectorDenoiser(0)


def test_merged_layers_start_as_separate_ones() -> None:
    """Uniform within 1 / sqrt(inputs), weights and biases, as torch starts a linear layer."""
    torch.manual_seed(0)
    block = Block(64, 100)
    within = {"w1_w4.weight": 64, "w1_w4.bias": 64, "w2_w3.weight": 100, "b2": 100}
    assert {name for name, _ in block.named_parameters()} == set(within)
    for name, weight in block.named_parameters():
        bound = within[name] ** -0.5
        assert 0.9 * bound < weight.abs().max().item() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_residual_adds_the_noisy_point_to_the_prediction() -> None:
    torch.manual_seed(0)
    net = VectorDenoiser(3, 8, capacity=0.1)
    z, angle, condition = torch.randn(4, 3), torch.tensor(0.7), torch.randn(4, 8)
    with torch.no_grad():
        added = net(z, angle, condition)
        net.residual = False
        assert torch.allclose(added - z, net(z, angle, condition), atol=1e-6)
    assert not Amortizer(3, residual=False).denoiser.residual
