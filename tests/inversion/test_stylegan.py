"""The style decoder and its encoder, against formulas written a second time, in float64.

Where a formula has a tempting wrong form, the wrong form is computed too and must not fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.errors import BadInput
from damc.inversion.stylegan import StyleDecoder, StyleSynthesis, Truncation
from damc.inversion.stylegan_encoder import StyleEncoder
from damc.inversion.stylegan_layers import Blur, Epilogue, EqualDense, StyleUp, pixel_norm

SMALL: dict[str, Any] = {
    "resolution": 16,
    "latent_dim": 12,
    "style": 8,
    "base": 64,
    "widest": 10,
    "mapping_layers": 3,
    "fused_from": 16,
}


def rand(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def randomized(net: nn.Module) -> Any:
    """The network in float64, with every parameter and statistic drawn at random."""
    net = net.double()
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not name.endswith(("kernel", "truncation", "lod")):
            tensor.copy_(rand(*tensor.shape) / 2)
        if name.endswith("running_var"):
            tensor.abs_().add_(0.5)
    return net


def fits(value: Tensor, right: Tensor, *wrong: Tensor) -> None:
    """The value is the right one, and each of the wrong ones would have been noticed."""
    torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-9)
    for other in wrong:
        assert (value - other).abs().max() > 1e-3


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def correlate(x: Tensor, weight: Tensor) -> Tensor:
    """A 3x3 layer as the sum over its nine shifts; weight (out, in, 3, 3)."""
    high, wide = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1))
    shifts = [(i, j) for i in range(3) for j in range(3)]
    terms = [
        torch.einsum("oc,bchw->bohw", weight[:, :, i, j], padded[:, :, i : i + high, j : j + wide])
        for i, j in shifts
    ]
    return torch.stack(terms).sum(0)


def double(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def blurred(x: Tensor) -> Tensor:
    row = F.pad(x, (0, 0, 1, 1))
    x = (row[:, :, :-2] + 2 * row[:, :, 1:-1] + row[:, :, 2:]) / 4
    column = F.pad(x, (1, 1))
    return (column[..., :-2] + 2 * column[..., 1:-1] + column[..., 2:]) / 4


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.2 * x)


def normed(x: Tensor, correction: int = 0) -> Tensor:
    mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), correction=correction, keepdim=True)
    return (x - mean) / (var + 1e-8).sqrt()


# --- piece by piece


@pytest.mark.parametrize(("gain", "m"), [(math.sqrt(2), 0.01), (1.0, 1.0)])
def test_dense_layers_are_scaled_as_they_are_used(gain: float, m: float) -> None:
    layer: EqualDense = randomized(EqualDense(7, 5, gain, m))
    x, weight, bias = 30 * rand(4, 7) / m, layer.fc["weight"], layer.wscale["bias"]
    right = gain * m * (x @ weight.T) / 7**0.5 + m * bias
    no_gain = m * (x @ weight.T) / 7**0.5 + m * bias
    unscaled_bias = right + (1 - m) * bias
    by_fan_out = gain * m * (x @ weight.T) / 5**0.5 + m * bias
    wrong = [by_fan_out] + ([no_gain] if gain != 1 else []) + ([unscaled_bias] if m != 1 else [])
    fits(layer(x), right, *wrong)


@pytest.mark.parametrize("m", [0.01, 1.0])
def test_dense_layers_start_with_the_variance_of_their_gain(m: float) -> None:
    """Var(output) = gain^2 for inputs of variance 1, whatever m and the size are."""
    n = 400
    layer = EqualDense(300, n, gain=math.sqrt(2), multiplier=m).double()
    x = torch.nn.functional.normalize(rand(1, 300)) * 300**0.5
    # The outputs are n independent N(0, 2), so their mean square has standard error 2 sqrt(2 / n).
    z = (layer(x).square().mean().item() - 2) / (2 * math.sqrt(2 / n))
    assert abs(z) < 4
    z_without_gain = (layer(x).square().mean().item() / 2 - 2) / (2 * math.sqrt(2 / n))
    assert abs(z_without_gain) > 4


def test_pixel_norm_divides_by_the_root_mean_square() -> None:
    z = rand(3, 6) * torch.tensor([[1.0], [100.0], [1e-4]])
    mean_square = (z * z).sum(1, keepdim=True) / 6
    right = z / (mean_square + 1e-8).sqrt()
    # The third row is where the place of 1e-8 shows: it is as large as the mean square itself.
    fits(pixel_norm(z), right, z / z.norm(dim=1, keepdim=True), z / (mean_square.sqrt() + 1e-8))
    fits(pixel_norm(1e6 * z), z / mean_square.sqrt())


def test_fused_layer_is_doubling_then_convolution() -> None:
    layer: StyleUp = randomized(StyleUp(10, 3, 4, style=2, fused=True))
    x, w = rand(2, 3, 5, 5), rand(2, 2)
    layer.blur, layer.epilogue = nn.Identity(), Bare()  # type: ignore[assignment]
    scale = math.sqrt(2 / 27)
    turned = layer.weight.permute(3, 2, 0, 1).flip(2, 3)
    right = scale * correlate(double(x), turned)
    zeros_between = torch.zeros(2, 3, 10, 10, dtype=torch.float64)
    zeros_between[..., ::2, ::2] = x
    fits(
        layer(x, w),
        right,
        scale * correlate(double(x), turned.flip(2, 3)),
        scale * correlate(zeros_between, turned),
        correlate(double(x), turned),
    )


def test_plain_layer_is_doubling_then_correlation() -> None:
    layer: StyleUp = randomized(StyleUp(10, 3, 4, style=2, fused=False))
    x, w = rand(2, 3, 5, 5), rand(2, 2)
    layer.blur, layer.epilogue = nn.Identity(), Bare()  # type: ignore[assignment]
    weight = math.sqrt(2 / 27) * layer.conv["weight"]
    fits(layer(x, w), correlate(double(x), weight), correlate(double(x), weight.flip(2, 3)))


def test_fused_and_plain_layers_agree_when_one_kernel_is_turned() -> None:
    plain: StyleUp = randomized(StyleUp(8, 3, 4, style=2, fused=False))
    fused = StyleUp(8, 3, 4, style=2, fused=True).double()
    state = plain.state_dict()
    state["weight"] = state.pop("conv.weight").flip(2, 3).permute(2, 3, 1, 0)
    fused.load_state_dict(state)
    x, w = rand(2, 3, 4, 4), rand(2, 2)
    fits(fused(x, w), plain(x, w))


def test_blur_is_one_two_one_both_ways() -> None:
    blur = Blur(3).double()
    x = rand(2, 3, 6, 7)
    fits(blur(x), blurred(x), 16 * blurred(x), F.avg_pool2d(x, 3, 1, 1))
    impulse = torch.zeros(1, 3, 5, 5, dtype=torch.float64)
    impulse[0, 1, 2, 2] = 16
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], dtype=torch.float64)
    fits(blur(impulse)[0, 1, 1:4, 1:4], kernel)
    assert blur(impulse)[0, [0, 2]].abs().max() == 0  # channels do not mix
    ramp = (torch.arange(6.0)[:, None] + 3 * torch.arange(6.0)).double().expand(1, 3, 6, 6)
    fits(blur(ramp)[..., 1:-1, 1:-1], ramp[..., 1:-1, 1:-1])


def test_epilogue_is_noise_bias_activation_norm_style_in_this_order() -> None:
    net: Epilogue = randomized(Epilogue(4, 3, style=5))
    x, w = rand(2, 3, 4, 4), rand(2, 5)
    weight, bias = net.style_mod.dense.fc["weight"], net.style_mod.dense.wscale["bias"]
    style = (w @ weight.T / 5**0.5 + bias)[:, :, None, None]
    scale, shift = style[:, :3], style[:, 3:]
    amount, b = net.apply_noise.weight[:, None, None], net.bias[:, None, None]
    noise = net.apply_noise.noise
    right = normed(leaky(x + amount * noise + b)) * (scale + 1) + shift
    fits(
        net(x, w),
        right,
        normed(leaky(x + amount * noise) + b) * (scale + 1) + shift,
        normed(leaky(x + amount * noise + b), 1) * (scale + 1) + shift,
        normed(leaky(x + b)) * (scale + 1) + shift,
        leaky(normed(x + amount * noise + b)) * (scale + 1) + shift,
        normed(leaky(x + amount * noise + b)) * scale + shift,
        normed(leaky(x + amount * noise + b)) * (shift + 1) + scale,
    )
    other = rand(2, 1, 4, 4)
    fits(net(x, w, other), normed(leaky(x + amount * other + b)) * (scale + 1) + shift, right)


def test_instance_norm_has_its_epsilon_inside_the_root() -> None:
    """A map of variance 1e-8 shows it: there the norm halves the variance."""
    net = Epilogue(4, 1, style=2).double()
    net.style_mod.dense.fc["weight"].data.zero_()
    x = rand(1, 1, 4, 4).abs()
    x = 1e-4 * (x / x.std(correction=0))
    fits(net(x, rand(1, 2)).var(correction=0), torch.tensor(0.5, dtype=torch.float64))


def test_truncation_draws_the_first_layers_to_the_average() -> None:
    net: Truncation = randomized(Truncation(5, 14, strength=0.75, truncated=8))
    w, mean = rand(3, 14, 5), net.w_avg
    right = w.clone()
    right[:, :8] = 0.25 * mean + (0.75 * w)[:, :8]
    everywhere = 0.25 * mean + 0.75 * w
    to_zero = torch.cat([(0.75 * w)[:, :8], w[:, 8:]], 1)
    fits(net(w), right, everywhere, to_zero, w)
    assert torch.equal(net(mean.expand(1, 14, 5)), mean.expand(1, 14, 5))
    fits(Truncation(5, 14, strength=1.0, truncated=8).double()(w), w)
    fits(Truncation(5, 14, strength=0.7, truncated=0).double()(w), w)


# --- the whole decoder and the whole encoder


def mapped(state: Mapping[str, Tensor], z: Tensor, flaw: str = "") -> Tensor:
    w = z / (z.square().mean(1, keepdim=True) + 1e-8).sqrt()
    for i in range(3):
        weight = state[f"mapping.dense{i}.fc.weight"]
        bias = state[f"mapping.dense{i}.wscale.bias"]
        w = 0.01 * (math.sqrt(2 / weight.shape[1]) * w @ weight.T + bias)
        w = w if flaw == "linear end" and i == 2 else leaky(w)
    return w.reshape(len(z), 6, 8)


def drawn(state: Mapping[str, Tensor], codes: Tensor, flaw: str = "") -> Tensor:
    """The image of codes (B, 6, 8): sizes 4 and 8 plain, 16 fused."""
    x = state["synthesis.layer0.const"].expand(len(codes), -1, -1, -1)
    for i in range(6):
        layer = {
            key.removeprefix(f"synthesis.layer{i}."): value
            for key, value in state.items()
            if key.startswith(f"synthesis.layer{i}.")
        }
        if i > 0:
            x = double(x) if i % 2 == 0 else x
            weight = layer["conv.weight"] if i != 4 else layer["weight"].permute(3, 2, 0, 1)
            weight = weight.flip(2, 3) if i == 4 and flaw != "kernel not turned" else weight
            x = math.sqrt(2 / (9 * x.shape[1])) * correlate(x, weight)
            x = blurred(x) if i % 2 == 0 and flaw != "no blur" else x
        noise = layer["epilogue.apply_noise.weight"][:, None, None]
        x = x + noise * layer["epilogue.apply_noise.noise"] * (flaw != "no noise")
        x = normed(leaky(x + layer["epilogue.bias"][:, None, None]))
        w = codes[:, 5 - i if flaw == "codes in reverse" else i]
        style = w @ layer["epilogue.style_mod.dense.fc.weight"].T / 8**0.5
        style = style + layer["epilogue.style_mod.dense.wscale.bias"]
        scale, shift = style[:, :, None, None].chunk(2, 1)
        x = x * (1 + scale) + shift
    colors = torch.einsum("oc,bchw->bohw", state["synthesis.output2.conv.weight"][..., 0, 0], x)
    gain = math.sqrt(2) if flaw == "gain of the image" else 1
    colors = gain * colors / x.shape[1] ** 0.5
    colors = colors + state["synthesis.output2.bias"][:, None, None]
    return colors if flaw == "no tanh" else torch.tanh(colors)


def test_decoder_is_the_formula_from_end_to_end() -> None:
    decoder: StyleDecoder = randomized(StyleDecoder(**SMALL, truncation=0.75, truncated_layers=4))
    state, z = decoder.state_dict(), 3 * rand(2, 12)
    for i in range(3):  # the mapping shrinks by 0.01 a layer, and its raw weights are that large
        state[f"mapping.dense{i}.fc.weight"].mul_(100)
        state[f"mapping.dense{i}.wscale.bias"].mul_(100)
    codes = mapped(state, z)
    fits(decoder.codes(z, truncate=False), codes, mapped(state, z, "linear end"))
    flaws = [
        "kernel not turned",
        "no blur",
        "no noise",
        "codes in reverse",
        "gain of the image",
        "no tanh",
    ]
    fits(
        decoder.synthesis(codes),
        drawn(state, codes),
        *(drawn(state, codes, flaw) for flaw in flaws),
    )
    fits(decoder.synthesis(codes.flatten(1)), drawn(state, codes))
    mean = decoder.truncation.w_avg
    truncated = torch.cat([mean + 0.75 * (codes[:, :4] - mean), codes[:, 4:]], 1)
    fits(decoder(z), drawn(state, truncated), drawn(state, codes))
    fits(decoder(z, truncate=False), drawn(state, codes))


def encoded(state: Mapping[str, Tensor], x: Tensor, flaw: str = "") -> Tensor:
    """Codes of images of 16 pixels: two residual blocks, the second without a 1x1 convolution."""

    def norm(y: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (
            state[f"{name}.bn.{part}"].view(-1, *[1] * (y.ndim - 2))
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (y - mean) / (var + 1e-5).sqrt() * scale + shift

    x = leaky(norm(correlate(x, state["block0.conv.weight"]), "block0.bn"))
    for block in ("block1", "block2"):
        shortcut = x = F.avg_pool2d(x, 2) if flaw != "no average" else x[..., ::2, ::2]
        if block == "block1":
            weight = state["block1.conv.weight"][..., 0, 0]
            shortcut = norm(torch.einsum("oc,bchw->bohw", weight, x), "block1.bn")
            shortcut = shortcut if flaw == "linear shortcut" else leaky(shortcut)
        for i in "12":
            bias = state[f"{block}.wscale{i}.bias"][:, None, None]
            x = correlate(x, state[f"{block}.conv{i}.weight"]) + bias * (flaw != "no bias")
            x = leaky(norm(x, f"{block}.bn{i}"))
        x = x + shortcut if flaw != "no shortcut" else x
    y = x.flatten(1) @ state["block3.fc.weight"].T
    return norm(y if flaw == "unscaled" else y / (16 * 8) ** 0.5, "block3.bn")


def test_encoder_is_the_formula_from_end_to_end() -> None:
    encoder: StyleEncoder = randomized(StyleEncoder(16, style=5, base=4, widest=8)).eval()
    state, x = encoder.state_dict(), rand(3, 3, 16, 16)
    flaws = ["no average", "linear shortcut", "no bias", "no shortcut", "unscaled"]
    fits(encoder(x), encoded(state, x), *(encoded(state, x, flaw) for flaw in flaws))


def test_encoder_learns_shifts_but_no_scales() -> None:
    encoder = StyleEncoder(8, style=4, base=4)
    fixed = {name for name, p in encoder.named_parameters() if not p.requires_grad}
    assert fixed == {name for name, _ in encoder.named_parameters() if name.endswith("bn.weight")}
    encoder(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None for p in encoder.parameters() if p.requires_grad)


# --- the published layout


def documented_decoder() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of styleganinv_*256_generator.pth."""
    shapes: dict[str, tuple[int, ...]] = {"synthesis.lod": (), "truncation.w_avg": (512,)}
    shapes["truncation.truncation"] = (1, 14, 1)
    for i in range(8):
        shapes[f"mapping.dense{i}.fc.weight"] = (7168 if i == 7 else 512, 512)
        shapes[f"mapping.dense{i}.wscale.bias"] = (7168 if i == 7 else 512,)
    width = {4: 512, 8: 512, 16: 512, 32: 512, 64: 256, 128: 128, 256: 64}
    for i in range(14):
        size = 4 * 2 ** (i // 2)
        n, name = width[size], f"synthesis.layer{i}"
        before = width[size // 2] if i % 2 == 0 and i else n
        if i == 0:
            shapes[f"{name}.const"] = (1, 512, 4, 4)
        elif i % 2 == 0 and size >= 128:
            shapes[f"{name}.weight"] = (3, 3, before, n)
        else:
            shapes[f"{name}.conv.weight"] = (n, before, 3, 3)
        if i % 2 == 0 and i:
            shapes[f"{name}.blur.kernel"] = (n, 1, 3, 3)
        shapes[f"{name}.epilogue.apply_noise.noise"] = (1, 1, size, size)
        shapes[f"{name}.epilogue.apply_noise.weight"] = (n,)
        shapes[f"{name}.epilogue.bias"] = (n,)
        shapes[f"{name}.epilogue.style_mod.dense.fc.weight"] = (2 * n, 512)
        shapes[f"{name}.epilogue.style_mod.dense.wscale.bias"] = (2 * n,)
        shapes[f"synthesis.output{i // 2}.conv.weight"] = (3, n, 1, 1)
        shapes[f"synthesis.output{i // 2}.bias"] = (3,)
    return shapes


def documented_encoder() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of styleganinv_*256_encoder.pth."""
    shapes: dict[str, tuple[int, ...]] = {"block0.conv.weight": (64, 3, 3, 3)}
    norms = {"block0.bn": 64, "block7.bn": 7168}
    shapes["block7.fc.weight"] = (7168, 1024 * 16)
    widths = [64, 128, 256, 512, 1024, 1024, 1024]
    for i in range(1, 7):
        n, m = widths[i - 1], widths[i]
        shapes[f"block{i}.conv1.weight"] = (n, n, 3, 3)
        shapes[f"block{i}.wscale1.bias"] = (n,)
        shapes[f"block{i}.conv2.weight"] = (m, n, 3, 3)
        shapes[f"block{i}.wscale2.bias"] = (m,)
        norms |= {f"block{i}.bn1": n, f"block{i}.bn2": m}
        if n != m:
            shapes[f"block{i}.conv.weight"] = (m, n, 1, 1)
            norms[f"block{i}.bn"] = m
    for name, n in norms.items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.bn.{part}"] = (n,)
        shapes[f"{name}.bn.num_batches_tracked"] = ()
    return shapes


@pytest.mark.parametrize(
    ("kind", "documented", "parameters"),
    [
        (StyleDecoder, documented_decoder(), 29_500_758),
        (StyleEncoder, documented_encoder(), 165_326_848),
    ],
)
def test_keys_shapes_and_counts_are_the_published_ones(
    kind: Any, documented: dict[str, tuple[int, ...]], parameters: int
) -> None:
    with torch.device("meta"):
        net = kind()
    assert {key: tuple(value.shape) for key, value in net.state_dict().items()} == documented
    assert count(net) == parameters


@pytest.mark.parametrize("resolution", [8, 16, 32, 64, 128, 256, 512, 1024])
def test_every_resolution_has_two_layers_a_size(resolution: int) -> None:
    with torch.device("meta"):
        decoder = StyleDecoder(resolution, 1, latent_dim=4, style=4, base=4096, widest=8)
        encoder = StyleEncoder(resolution, 1, style=4, base=4, widest=8).eval()
        layers = 2 * int(math.log2(resolution)) - 2
        codes = decoder.codes(torch.empty(2, 4))
        assert codes.shape == (2, layers, 4)
        assert decoder.synthesis(codes).shape == (2, 1, resolution, resolution)
        assert encoder(torch.empty(2, 1, resolution, resolution)).shape == (2, layers * 4)
    assert sum("blur" in key for key in decoder.state_dict()) == layers // 2 - 1
    fused = [key for key in decoder.state_dict() if re.fullmatch(r"synthesis.layer\d+.weight", key)]
    assert len(fused) == max(0, int(math.log2(resolution)) - 6)


# --- use


def test_a_full_size_image_can_be_made() -> None:
    """One pass of the 256-pixel decoder; weights are constants, since drawing 29 million takes."""
    with torch.device("meta"):
        synthesis = StyleSynthesis(256, 3, 512, base=16384, widest=512, fused_from=128)
    synthesis.to_empty(device=torch.get_default_device())
    for name, tensor in synthesis.state_dict().items():
        tensor.fill_(1 / 16 if name.endswith("kernel") else 0.01)
        if name.endswith("noise"):
            tensor.normal_()
    with torch.no_grad():
        x = synthesis(torch.ones(1, 14 * 512))
    assert x.shape == (1, 3, 256, 256) and x.isfinite().all() and x.std() > 0
    assert x.abs().max() <= 1


def test_noise_is_the_decoders_own_unless_fresh() -> None:
    decoder = StyleDecoder(**SMALL)
    for name, p in decoder.named_parameters():
        if name.endswith("apply_noise.weight"):
            p.data.fill_(1)
    w = torch.randn(2, 6, 8)
    own = decoder.synthesis(w)
    assert torch.equal(own, decoder.synthesis(w))

    def fresh(seed: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        return decoder.synthesis(w, fresh_noise=True, generator=draw)

    assert torch.equal(fresh(1), fresh(1))
    assert not torch.equal(fresh(1), fresh(2)) and not torch.equal(fresh(1), own)
    same = decoder.synthesis(w[:1].expand(2, -1, -1), fresh_noise=True)
    assert not torch.equal(same[0], same[1])  # every image has its own


def test_gradients_reach_the_codes_of_every_layer_and_all_that_is_learned() -> None:
    decoder = StyleDecoder(**SMALL)
    codes = torch.randn(2, 6, 8, requires_grad=True)
    decoder.synthesis(codes).square().sum().backward()
    assert codes.grad is not None and (codes.grad.abs().sum((0, 2)) > 0).all()
    decoder(torch.randn(2, 12)).sum().backward()
    for name, p in decoder.named_parameters():
        assert (p.grad is not None) == p.requires_grad, name
    frozen = {
        name.rsplit(".", 1)[0] for name, p in decoder.named_parameters() if not p.requires_grad
    }
    assert frozen == {"synthesis"} | {
        f"synthesis.output{i}{part}" for i in (0, 1) for part in ("", ".conv")
    }


@pytest.mark.parametrize("resolution", [4, 24, 28, 2048, 0, -8])
def test_other_resolutions_are_refused(resolution: int) -> None:
    for kind in (StyleDecoder, StyleEncoder):
        with pytest.raises(BadInput, match=f"resolution must be a power.*got {resolution}"):
            kind(resolution)


def test_other_shapes_are_refused_in_one_sentence() -> None:
    decoder, encoder = StyleDecoder(**SMALL), StyleEncoder(8, style=4, base=2)
    with pytest.raises(BadInput, match=r"z must have shape \(B, 12\), got \(2, 8\)"):
        decoder(torch.zeros(2, 8))
    with pytest.raises(
        BadInput, match=r"codes must have shape \(B, 6, 8\) or \(B, 48\), got \(2, 5, 8"
    ):
        decoder.synthesis(torch.zeros(2, 5, 8))
    with pytest.raises(
        BadInput, match=r"images must have shape \(B, 3, 8, 8\), got \(2, 3, 16, 16"
    ):
        encoder(torch.zeros(2, 3, 16, 16))
    with pytest.raises(BadInput, match="base must be at least the resolution, 128, got 64"):
        StyleDecoder(128, base=64)
    with pytest.raises(BadInput, match="style must be positive"):
        StyleDecoder(8, style=0)


class Bare(nn.Module):
    """Stands in for an epilogue, to look at what comes before it."""

    def forward(self, x: Tensor, w: Tensor, noise: Tensor | None) -> Tensor:
        return x
