"""The small StyleGAN: its losses are the equations, resuming is exact, and it learns."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from damc import BadInput, fit, load
from damc.disk.tensors import to_safetensors
from damc.inversion.discriminator import Discriminator, EqualConv, batch_spread, halved
from damc.inversion.gan import GAN, GANSettings, GANSizes
from damc.inversion.stylegan import load_style_decoder
from damc.learn import find_learner
from damc.learn.optimizers import LearningRate

TINY = GANSizes(
    (1, 6, 7), resolution=8, latent_dim=4, style=6, base=64, widest=12, mapping_layers=2
)


def learner(sizes: GANSizes = TINY, **changes: Any) -> GAN:
    torch.manual_seed(0)
    return GAN(sizes, replace(GANSettings(), **changes))


def images(n: int = 40) -> Tensor:
    return torch.rand(n, 1, 6, 7, generator=torch.Generator().manual_seed(1)) * 2 - 1


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_spread_of_a_group_is_its_standard_deviation() -> None:
    x = torch.randn(6, 3, 2, 2, dtype=torch.float64)
    y = batch_spread(x, group=3)
    assert y.shape == (6, 4, 2, 2) and torch.equal(y[:, :3], x)
    for i in range(6):
        group = x[[i % 2, i % 2 + 2, i % 2 + 4]]
        expected = group.std(0, correction=0).mean()
        torch.testing.assert_close(y[i, 3], expected.expand(2, 2), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(y[0, 3], y[1, 3])  # groups do not mix
    # Five images are no two groups of three, so they are one of five.
    whole = batch_spread(x[:5], group=3)[:, 3]
    expected = x[:5].std(0, correction=0).mean()
    torch.testing.assert_close(whole, expected.expand(5, 2, 2), rtol=1e-6, atol=1e-6)


def test_equal_images_have_no_spread_and_a_finite_gradient() -> None:
    x = torch.ones(4, 2, 2, 2, requires_grad=True)
    spread = batch_spread(x, group=4)[:, -1]
    assert float(spread.detach().max()) < 1e-3
    (gradient,) = torch.autograd.grad(spread.sum(), x)
    assert bool(gradient.isfinite().all())


def test_halving_is_average_pooling() -> None:
    x = torch.randn(2, 3, 4, 8)
    torch.testing.assert_close(halved(x), F.avg_pool2d(x, 2))


@pytest.mark.parametrize("gain", [1.0, math.sqrt(2)])
def test_a_convolution_starts_at_the_variance_of_its_gain(gain: float) -> None:
    conv = EqualConv(64, 256, 3, gain=gain)
    y = conv(torch.randn(8, 64, 6, 6))[..., 1:-1, 1:-1].detach()
    # The variance of a channel follows chi^2 of its 576 weights; 256 channels are independent.
    per_channel = y.var((0, 2, 3), correction=0)
    error = per_channel.std() / math.sqrt(256)
    assert abs(float(per_channel.mean() - gain**2)) < 4 * float(error)


@pytest.mark.parametrize("resolution", [8, 32])
def test_logits_of_any_resolution(resolution: int) -> None:
    critic = Discriminator(resolution, 3, base=64, widest=8)
    assert critic(torch.zeros(5, 3, resolution, resolution)).shape == (5,)
    with pytest.raises(BadInput, match="images must have shape"):
        critic(torch.zeros(5, 1, resolution, resolution))


def plain(gan: GAN, rate: float) -> GAN:
    """The learner in float64 with gradient descent, whose update shows the gradient itself."""
    gan.double()
    for name, module in {"discriminator": gan.discriminator, "decoder": gan.learned}.items():
        parameters = [p for p in module.parameters() if p.requires_grad]
        gan.optimizers.add(name, parameters, LearningRate(rate))
        gan.optimizers._optimizers[name] = torch.optim.SGD(parameters, lr=rate)
    return gan


@pytest.mark.parametrize("iteration", [0, 1, 4])
def test_a_step_is_the_two_equations(iteration: int) -> None:
    every, gamma, rate = 4, 3.0, 0.05
    gan = plain(learner(r1=gamma, r1_every=every, clip=1e9), rate)
    gan.iteration = iteration
    before = copy.deepcopy(gan)
    x = images(8).double()
    metrics = gan.step(x, torch.arange(8), torch.Generator().manual_seed(5))

    generator = torch.Generator().manual_seed(5)
    z = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    codes = before.learned.mapping(z)
    fake = before.learned.synthesis(codes, fresh_noise=True, generator=generator)
    real = torch.full((8, 1, 8, 8), -1.0, dtype=torch.float64)
    real[:, :, 1:7, 0:7] = x  # 6 x 7 in the middle of 8 x 8
    real.requires_grad_()
    logits = before.discriminator(real)
    # -log sigmoid(D(x)) - log(1 - sigmoid(D(g(z))))
    loss = -logits.sigmoid().log().mean()
    loss = loss - (1 - before.discriminator(fake.detach()).sigmoid()).log().mean()
    (slope,) = torch.autograd.grad(logits.sum(), real, create_graph=True)
    penalty = slope.flatten(1).norm(dim=1).square().mean()
    if iteration % every == 0:
        loss = loss + every * gamma / 2 * penalty
        torch.testing.assert_close(metrics["r1"], penalty.detach())
    descend(before.discriminator, loss, rate)
    descend(before.learned, -before.discriminator(fake).sigmoid().log().mean(), rate)

    for name in ("discriminator", "learned"):
        ours, theirs = getattr(gan, name), getattr(before, name)
        for (key, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12, msg=f"{name}.{key}")


def descend(module: torch.nn.Module, loss: Tensor, rate: float) -> None:
    parameters = [p for p in module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
    with torch.no_grad():
        for p, gradient in zip(parameters, gradients, strict=True):
            p.sub_(rate * gradient)


def test_the_decoder_that_is_kept_follows_the_one_that_learns() -> None:
    gan = learner(ema_rate=0.25, w_rate=1.0)
    start = copy.deepcopy(gan.decoder)
    gan.step(images(8), torch.arange(8), torch.Generator().manual_seed(5))
    pairs = zip(start.parameters(), gan.learned.parameters(), gan.decoder.parameters(), strict=True)
    moved = 0
    for old, new, kept in pairs:
        torch.testing.assert_close(kept, 0.75 * old + 0.25 * new, rtol=1e-5, atol=1e-6)
        moved += int(not torch.equal(old, new))
    assert moved > 10
    z = torch.randn(8, 4, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(gan.averages, start.mapping(z).mean(0))
    torch.testing.assert_close(gan.decoder.truncation.w_avg, gan.averages.mean(0))


def test_five_and_five_are_ten_bit_for_bit(tmp_path: Path) -> None:
    def train(gan: GAN, iterations: int, run: Path, seed: int = 0) -> GAN:
        fit(gan, images(), iterations=iterations, run=run, batch=16, seed=seed, progress=False)
        return gan

    ten = train(learner(r1_every=3), 10, tmp_path / "ten")
    train(learner(r1_every=3), 5, tmp_path / "five")
    resumed = learner(r1_every=3)
    torch.manual_seed(99)  # torch's own random state must not matter
    train(resumed, 10, tmp_path / "five")
    assert same(ten.state_dict(), resumed.state_dict())
    for name in ("weights.safetensors", "resume.safetensors", "resume.json"):
        files = [tmp_path / run / "checkpoints/00000010" / name for run in ("ten", "five")]
        assert files[0].read_bytes() == files[1].read_bytes()
    other = train(learner(r1_every=3), 10, tmp_path / "other", seed=1)
    assert not same(ten.state_dict(), other.state_dict())

    loaded = load(tmp_path / "ten")
    assert isinstance(loaded, GAN) and loaded.iteration == 10
    assert loaded.config == ten.config and same(ten.state_dict(), loaded.state_dict())


def test_images_are_a_function_of_codes() -> None:
    gan = learner()
    for _ in range(3):  # the amounts of noise start at 0
        gan.step(images(8), torch.arange(8), torch.Generator().manual_seed(5))
    codes = gan.codes(5, generator=torch.Generator().manual_seed(2))
    assert codes.shape == (5, 4 * 6)
    assert torch.equal(gan.decode(codes), gan.decode(codes))
    drawn = gan.sample(5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(drawn, gan.synthesize(codes)[:, :, 1:7, 0:7])
    assert drawn.abs().max() <= 1


def test_truncation_draws_codes_towards_the_average_of_their_layer() -> None:
    gan = learner()
    gan.averages.normal_()
    full, half, none = (
        gan.codes(3, truncation=c, generator=torch.Generator().manual_seed(2)) for c in (1, 0.5, 0)
    )
    torch.testing.assert_close(none, gan.averages.flatten().expand(3, -1))
    torch.testing.assert_close(half, (full + none) / 2)
    with pytest.raises(BadInput, match="truncation"):
        gan.codes(3, truncation=1.5)


def test_padding_is_background_and_cropping_undoes_it() -> None:
    gan, x = learner(), images(3)
    padded = gan.pad(x)
    assert padded.shape == (3, 1, 8, 8) and torch.equal(gan.crop(padded), x)
    border = padded.numel() - x.numel()
    assert int((padded == -1).sum()) - int((x == -1).sum()) == border
    with pytest.raises(BadInput, match=r"images must have shape \(1, 6, 7\)"):
        gan.pad(torch.zeros(3, 3, 6, 7))


def test_the_decoder_has_the_published_layout(tmp_path: Path) -> None:
    gan = learner()
    path = tmp_path / "decoder.safetensors"
    path.write_bytes(to_safetensors(gan.decoder.state_dict()))
    codes = gan.codes(2)
    assert torch.equal(load_style_decoder(path).synthesis(codes), gan.synthesize(codes))


def test_what_it_cannot_do_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="gan has no inference"):
        learner().reconstruct(images(2))
    with pytest.raises(BadInput, match="a method that takes presets is needed, got 'gan'"):
        find_learner("gan").from_preset("digits-small")


BARS = torch.full((2, 1, 8, 8), -1.0)
BARS[0, :, :, 1:3] = 1.0  # upright
BARS[1, :, 5:7] = 1.0  # lying


def distance_to_bars(drawn: Tensor) -> tuple[float, Tensor]:
    """Mean squared error to the nearer bar, and how many images are nearest to each."""
    errors = (drawn[:, None] - BARS).square().mean((2, 3, 4))
    nearest = errors.min(1)
    return float(nearest.values.mean()), torch.bincount(nearest.indices, minlength=2)


def test_it_learns_two_kinds_of_images() -> None:
    sizes = GANSizes(
        (1, 8, 8), resolution=8, latent_dim=4, style=8, base=64, widest=8, mapping_layers=2
    )
    rates = {"decoder_rate": 5e-3, "discriminator_rate": 5e-3, "ema_rate": 0.05}
    gan = learner(sizes, r1=0.5, r1_every=4, **rates)
    generator = torch.Generator().manual_seed(0)
    before, _ = distance_to_bars(gan.sample(200, generator=generator))
    for _ in range(120):
        x = BARS[torch.randint(2, (16,), generator=generator)]
        x = x + 0.1 * torch.randn(x.shape, generator=generator)
        gan.step(x, torch.arange(16), generator)
    after, counts = distance_to_bars(gan.sample(200, generator=generator))
    # The mean of both bars, what a decoder without a critic would learn, is 0.38 from either.
    mean_image, _ = distance_to_bars(BARS.mean(0, keepdim=True))
    assert before > mean_image > 0.3 > 0.15 > after
    # About half of them are each kind; a decoder that collapsed gives one kind alone.
    assert int(counts.min()) >= 40


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r1": -1.0}, "r1 must not be negative"),
        ({"r1_every": 0}, "r1_every must be at least 1"),
        ({"decoder_rate": 0.0}, "decoder_rate must be positive"),
        ({"ema_rate": 2.0}, "ema_rate must lie in"),
        ({"beta2": 1.0}, "beta2"),
        ({"decay": "never"}, "decay must be"),
    ],
)
def test_wrong_settings_are_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        GANSettings(**changes)


def test_wrong_sizes_are_one_sentence() -> None:
    with pytest.raises(BadInput, match="power of two"):
        GANSizes((1, 8, 8), resolution=12)
    with pytest.raises(BadInput, match="at most 8x8, as the decoder makes them"):
        GANSizes((1, 9, 8), resolution=8)
    with pytest.raises(BadInput, match="base must be at least the resolution, 8, got 4"):
        GAN(GANSizes((1, 8, 8), resolution=8, base=4))
