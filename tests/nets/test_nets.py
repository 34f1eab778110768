"""Networks: the paper's parameter counts, exact equivalences, any image shape, loud bad input."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from damc.errors import BadInput
from damc.nets import (
    DECODERS,
    ENCODERS,
    HYBRIDS,
    DownLayer,
    UpLayer,
    conv_decoder,
    conv_decoder_for,
    conv_encoder,
    decoder_rows,
    encoder_for,
    encoder_rows,
    mlp,
    mlp_conv_decoder,
    mlp_decoder,
    mlp_encoder,
    mlp_energy,
)
from damc.nets.decoder import FirstLayer

# name: (latent_dim, ngf, nif, image shape) and the parameters of decoder, energy and encoder.
PAPER: dict[str, tuple[int, int, int, tuple[int, int, int], int, int, int]] = {
    "svhn": (100, 64, 64, (3, 32, 32), 3_447_683, 60_601, 11_146_752),
    "celeba64": (100, 128, 64, (3, 64, 64), 12_656_515, 60_601, 15_342_592),
    "cifar10": (128, 128, 64, (3, 32, 32), 18_883_075, 66_201, 11_146_752),
    "celebahq256": (128, 128, 64, (3, 256, 256), 52_963_715, 66_201, 20_587_776),
    "mnist": (8, 128, 128, (1, 28, 28), 10_891_265, 42_201, 20_455_168),
}

shapes = st.tuples(st.integers(1, 4), st.integers(4, 70), st.integers(4, 70))


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def gradient_to_input(net: nn.Module, z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(z).square().sum(), z)
    return gradient


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_are_the_papers(name: str) -> None:
    latent_dim, ngf, nif, shape, decoder, energy, encoder = PAPER[name]
    with torch.device("meta"):
        assert count(conv_decoder(latent_dim, DECODERS[name], shape[0], ngf)) == decoder
        assert count(mlp_energy(latent_dim)) == energy
        assert count(conv_encoder(shape, ENCODERS[name], embedding=1024, width=nif)) == encoder


def test_inversion_energy_has_three_hidden_layers() -> None:
    with torch.device("meta"):
        assert count(mlp_energy(7168, hidden=(512, 512, 512))) == 4_196_353


@pytest.mark.parametrize("name", PAPER)
def test_papers_networks_have_the_images_shape(name: str) -> None:
    latent_dim, _, _, shape, *_ = PAPER[name]
    z = torch.randn(2, latent_dim)
    decoder = conv_decoder(latent_dim, DECODERS[name], shape[0], width=2)
    x = decoder(z)
    assert x.shape == (2, *shape)
    assert x.abs().max() <= 1
    gradient = gradient_to_input(decoder, z)
    assert gradient.isfinite().all() and gradient.abs().sum() > 0
    embedding = conv_encoder(shape, ENCODERS[name], embedding=16, width=2)(x)
    assert embedding.shape == (2, 16)


def test_decoder_equals_a_chain_of_transposed_convolutions() -> None:
    """The whole MNIST decoder against plain torch layers that hold the same weights."""
    ours = conv_decoder(8, DECODERS["mnist"], 1, width=2).double()
    plain = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 7, 1, 0),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(8, 4, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(4, 1, 3, 1, 1),
        nn.Tanh(),
    ).double()
    plain.load_state_dict(
        dict(zip(plain.state_dict(), ours.state_dict().values(), strict=True)), strict=True
    )
    z = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(ours(z), plain(z[:, :, None, None]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [(4, 4), (7, 7), (3, 5)])
def test_first_layer_is_the_transposed_convolution_of_a_point(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = FirstLayer(6, 10, size)
    torch.manual_seed(0)
    conv = nn.ConvTranspose2d(6, 10, size)
    # Same draws from the same seed: the initial distribution is ConvTranspose2d's own.
    for a, b in zip(ours.parameters(), conv.parameters(), strict=True):
        assert torch.equal(a, b)
    z = torch.randn(4, 6, dtype=torch.float64)
    ours, conv = ours.double(), conv.double()
    torch.testing.assert_close(ours(z), conv(z[:, :, None, None]), rtol=1e-12, atol=1e-12)
    weights = torch.randn(4, 10, *size, dtype=torch.float64)
    (ours(z) * weights).sum().backward()
    (conv(z[:, :, None, None]) * weights).sum().backward()
    for a, b in zip(ours.parameters(), conv.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-10)


def test_first_layer_starts_within_the_bound_of_its_fan() -> None:
    """kaiming_uniform(a = sqrt 5) is uniform on +-1/sqrt(fan), and fan is outputs * k * k here."""
    weight = FirstLayer(50, 20, (4, 4)).conv.weight.detach()
    bound = 1 / math.sqrt(20 * 4 * 4)
    assert weight.abs().max() <= bound
    # 16,000 uniform draws: the standard error of the variance is variance * sqrt(0.8 / n).
    variance = bound**2 / 3
    assert abs(weight.var().item() - variance) < 5 * variance * math.sqrt(0.8 / weight.numel())
    linear_fan = 1 / 50 / 3
    assert abs(linear_fan - variance) > 5 * variance * math.sqrt(0.8 / weight.numel())


def test_encoder_equals_the_papers_chain_of_convolutions() -> None:
    """The whole MNIST encoder, its last layer a valid convolution, against plain torch layers."""
    ours = conv_encoder((1, 28, 28), ENCODERS["mnist"], embedding=12, width=2).double()
    plain = nn.Sequential(
        nn.Conv2d(1, 2, 3, 1, 1),
        nn.InstanceNorm2d(2, affine=True),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2, 4, 4, 2, 1),
        nn.InstanceNorm2d(4, affine=True),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 8, 4, 2, 1),
        nn.InstanceNorm2d(8, affine=True),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 16, 4, 2, 1),
        nn.InstanceNorm2d(16, affine=True),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 12, 3),
    ).double()
    with torch.no_grad():
        for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
            b.normal_(std=0.5)
            a.copy_(b.view(a.shape))
    x = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    torch.testing.assert_close(ours(x), plain(x).flatten(1), rtol=1e-10, atol=1e-10)
    assert not list(ours.buffers()), "instance normalization keeps no running statistics"


def test_encoder_sees_each_image_alone() -> None:
    encoder = encoder_for((3, 16, 16), embedding=8, width=2).double()
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(encoder(x)[:1], encoder(x[:1]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rows", HYBRIDS.values(), ids=HYBRIDS.keys())
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 9, 30)])
def test_hybrid_decoders(rows: tuple[UpLayer, ...], shape: tuple[int, int, int]) -> None:
    decoder = mlp_conv_decoder(5, shape, rows, hidden=(16,), width=2)
    z = torch.randn(3, 5)
    x = decoder(z)
    assert x.shape == (3, *shape)
    assert x.abs().max() <= 1
    assert gradient_to_input(decoder, z).isfinite().all()


def test_shuffle_rows_can_express_transposed_rows() -> None:
    """A 4x4 stride-2 transposed convolution is a 3x3 convolution followed by a pixel shuffle."""
    transposed = conv_decoder(3, (UpLayer(2, 5), UpLayer(None, 4, 2)), 1).double()
    shuffle = conv_decoder(3, (UpLayer(2, 5), UpLayer(None, 3, 2, "shuffle")), 1).double()
    weights = transposed.state_dict()
    kernel = torch.zeros(4, 2, 3, 3, dtype=torch.float64)
    for row in range(2):
        for column in range(2):
            for i in range(3):
                for j in range(3):
                    # Output pixel 2n + row meets input pixel n + i - 1 through this kernel entry.
                    u, v = row + 3 - 2 * i, column + 3 - 2 * j
                    if 0 <= u < 4 and 0 <= v < 4:
                        kernel[2 * row + column, :, i, j] = weights["2.weight"][:, 0, u, v]
    shuffle.load_state_dict(
        {**weights, "2.weight": kernel, "2.bias": weights["2.bias"].repeat_interleave(4)}
    )
    z = torch.randn(6, 3, dtype=torch.float64)
    torch.testing.assert_close(shuffle(z), transposed(z), rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(shape=shapes, latent_dim=st.integers(1, 9))
def test_any_image_shape(shape: tuple[int, int, int], latent_dim: int) -> None:
    z = torch.randn(2, latent_dim, dtype=torch.float64)
    decoder = conv_decoder_for(shape, latent_dim, width=2).double()
    x = decoder(z)
    assert x.shape == (2, *shape)
    assert x.dtype == torch.float64
    assert x.abs().max() <= 1
    assert gradient_to_input(decoder, z).isfinite().all()
    embedding = encoder_for(shape, embedding=7, width=2).double()(x)
    assert embedding.shape == (2, 7)
    assert embedding.isfinite().all()


@settings(max_examples=200, deadline=None)
@given(shape=st.tuples(st.just(1), st.integers(4, 2000), st.integers(4, 2000)))
def test_rows_meet_the_image_closely(shape: tuple[int, int, int]) -> None:
    """The first map stays small, and less than one first-map pixel is cropped from any side."""
    rows = decoder_rows(shape)
    for axis in (0, 1):
        first = torch.Size(rows[0].kernel if isinstance(rows[0].kernel, tuple) else ())[axis]
        scale = math.prod(r.stride[axis] if isinstance(r.stride, tuple) else 1 for r in rows[1:])
        assert 4 <= first <= 8
        assert 0 <= first * scale - shape[1 + axis] < scale


def test_square_rows_are_the_papers() -> None:
    with torch.device("meta"):
        assert count(encoder_for((3, 32, 32))) == PAPER["svhn"][-1]
        assert count(encoder_for((3, 64, 64))) == PAPER["celeba64"][-1]
        assert count(conv_decoder_for((3, 64, 64), 100, width=128)) == PAPER["celeba64"][-3]


def test_crop_takes_the_middle() -> None:
    decoder = conv_decoder_for((1, 9, 11), 3, width=2)
    whole = nn.Sequential(*(m for m in decoder if type(m).__name__ != "Crop"))
    z = torch.randn(2, 3)
    assert whole(z).shape == (2, 1, 10, 12)
    assert torch.equal(decoder(z), whole(z)[..., 0:9, 0:11])


@pytest.mark.parametrize("activation", ["lrelu", "gelu", "silu"])
def test_energy_is_a_scalar_for_each_point(activation: str) -> None:
    energy = mlp_energy(6, (16, 16), activation).double()
    z = torch.randn(5, 6, dtype=torch.float64)
    assert energy(z).shape == (5,)
    assert energy(z[:1]).shape == (1,)
    torch.testing.assert_close(energy(z)[2:3], energy(z[2:3]))
    assert gradient_to_input(energy, z).isfinite().all()


def test_leaky_energy_by_hand() -> None:
    energy = mlp_energy(1, hidden=(1,))
    with torch.no_grad():
        for p, value in zip(energy.parameters(), (1.0, 0.0, 3.0, 0.5), strict=True):
            p.fill_(value)
    expected = torch.tensor([2 * 3 + 0.5, -2 * 0.2 * 3 + 0.5])
    torch.testing.assert_close(energy(torch.tensor([[2.0], [-2.0]])), expected)


@pytest.mark.parametrize("spectral_norm", [True, False])
def test_spectral_norm_bounds_the_slope(spectral_norm: bool) -> None:
    """With unit spectral norms and LeakyReLU the energy's gradient is at most 1 long."""
    energy = mlp_energy(10, (64, 64), spectral_norm=spectral_norm)
    z = torch.randn(200, 10)
    with torch.no_grad():
        for weight in energy.parameters():
            weight.mul_(10)
        for _ in range(200):
            energy(z)
    energy.eval()
    z.requires_grad_()
    (slope,) = torch.autograd.grad(energy(z).sum(), z)
    assert (slope.norm(dim=1).max().item() <= 1.001) == spectral_norm


def test_mlp_decoder_and_encoder_take_images_and_vectors() -> None:
    z = torch.randn(3, 4)
    x = mlp_decoder(4, (1, 8, 8), hidden=(16,))(z)
    assert x.shape == (3, 1, 8, 8)
    assert x.abs().max() <= 1
    assert mlp_encoder((1, 8, 8), (16,), embedding=5)(x).shape == (3, 5)
    unbounded = mlp_decoder(4, (12,), hidden=(), last=None)
    assert unbounded(100 * z).abs().max() > 1
    assert mlp_encoder((12,), (), embedding=5)(unbounded(z)).shape == (3, 5)


def test_mlp_layers() -> None:
    net = mlp((3, 5, 2), "silu", last="tanh")
    assert [type(layer) for layer in net] == [nn.Linear, nn.SiLU, nn.Linear, nn.Tanh]
    assert [type(layer) for layer in mlp((3, 2))] == [nn.Linear]


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "one size": (lambda: mlp((3,)), "an input and an output size"),
    "zero size": (lambda: mlp((3, 0, 1)), "sizes"),
    "fraction": (lambda: mlp((3, 2.5, 1)), "sizes"),  # type: ignore[arg-type]
    "activation": (lambda: mlp((3, 2, 1), "swish"), "swish"),
    "latent": (lambda: mlp_energy(0), "latent_dim"),
    "hidden": (lambda: mlp_energy(2, (-1,)), "hidden"),
    "decoder latent": (lambda: conv_decoder(-1, DECODERS["svhn"], 3), "latent_dim"),
    "decoder channels": (lambda: conv_decoder(2, DECODERS["svhn"], 0), "channels"),
    "decoder width": (lambda: conv_decoder(2, DECODERS["svhn"], 3, 0), "width"),
    "few rows": (lambda: conv_decoder(2, (UpLayer(1, 4),), 3), "first map"),
    "last row": (lambda: conv_decoder(2, (UpLayer(1, 4), UpLayer(1, 3)), 3), "last row"),
    "kernel": (lambda: conv_decoder(2, (UpLayer(1, 4), UpLayer(None, 3, 2)), 3), "even number"),
    "first stride": (lambda: conv_decoder(2, (UpLayer(1, 4, 2), UpLayer(None, 3)), 3), "stride"),
    "shuffle": (
        lambda: conv_decoder(2, (UpLayer(1, 4), UpLayer(None, 4, 2, "shuffle")), 3),
        "odd kernel",
    ),
    "crop": (
        lambda: conv_decoder(2, (UpLayer(1, 4), UpLayer(None, 3)), 3, crop=(5, 4)),
        "at most the size of the last map",
    ),
    "flat image": (lambda: conv_decoder_for((28, 28), 2), "channels, height, width"),
    "tiny image": (lambda: conv_decoder_for((1, 3, 28), 2), "3 x 28"),
    "tiny encoder": (lambda: encoder_for((1, 28, 2)), "28 x 2"),
    "encoder embedding": (lambda: encoder_for((1, 8, 8), embedding=0), "embedding"),
    "too many rows": (lambda: conv_encoder((3, 8, 8), ENCODERS["svhn"]), "fewer rows"),
    "encoder stride": (lambda: conv_encoder((3, 8, 8), (DownLayer(1, 3, 0),)), "stride"),
    "no shape": (lambda: mlp_decoder(2, ()), "shape"),
    "no encoder shape": (lambda: mlp_encoder(()), "shape"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_get_one_sentence(mistake: str) -> None:
    build, said = MISTAKES[mistake]
    with pytest.raises(BadInput, match=said) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_rows_for_small_and_long_images() -> None:
    assert encoder_rows((1, 4, 4)) == (DownLayer(1, 3, 1),)
    assert encoder_rows((1, 8, 4))[1:] == (DownLayer(2, (4, 3), (2, 1)),)
    assert decoder_rows((1, 5, 4)) == (UpLayer(1, (5, 4)), UpLayer(None, 3))
    assert decoder_rows((1, 8, 4)) == (UpLayer(1, (4, 4)), UpLayer(None, (4, 3), (2, 1)))
