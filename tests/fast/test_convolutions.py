"""Convolutions without a graph: the layer's own output, and autograd's gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc.fast.convolutions import convolution, transposed_convolution
from damc.fast.gradients import pullback

LAYERS: dict[str, tuple[nn.Module, int]] = {
    "same": (nn.Conv2d(5, 7, 3, padding="same"), 6),
    "uneven": (nn.Conv2d(5, 7, (1, 5), padding="same", bias=False), 6),
    "valid": (nn.Conv2d(5, 7, 3, padding="valid"), 6),
    "padded": (nn.Conv2d(5, 7, 5, padding=1), 6),
    "product, few outputs": (nn.ConvTranspose2d(5, 3, 4, 2, 1), 6),
    "product, more kernel than map": (nn.ConvTranspose2d(40, 20, 4, 2, 1), 4),
    "product, stride 3, no bias": (nn.ConvTranspose2d(5, 3, (5, 3), (3, 1), (1, 0), bias=False), 6),
    "product, kernel below stride": (nn.ConvTranspose2d(5, 3, 2, 3), 6),
    "transposed": (nn.ConvTranspose2d(5, 20, 4, 2, 1), 6),
    "output padding": (nn.ConvTranspose2d(4, 5, 5, 2, 2, output_padding=1), 6),
    "shuffle": (nn.PixelShuffle(2), 6),
}
LEFT_TO_AUTOGRAD = {
    "stride": nn.Conv2d(4, 4, 3, stride=2),
    "groups": nn.Conv2d(4, 4, 3, groups=2),
    "dilation": nn.Conv2d(4, 4, 3, dilation=2),
    "circular": nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    "even kernel": nn.Conv2d(4, 4, 2, padding="same"),
    "more padding than kernel": nn.Conv2d(4, 4, 1, padding=2),
    "transposed, dilation": nn.ConvTranspose2d(4, 4, 3, 2, dilation=2),
}


def by_autograd(layer: nn.Module, h: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    h = h.clone().requires_grad_()
    y = layer(h)
    return y.detach(), torch.autograd.grad(y, h, grad)[0]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_output_and_gradient_are_the_layers(
    name: str, layout: torch.memory_format, generator: torch.Generator
) -> None:
    layer, side = LAYERS[name]
    layer = layer.double()
    channels = getattr(layer, "in_channels", 8)
    h = torch.randn(3, channels, side, side + 1, dtype=torch.float64, generator=generator)
    h = h.contiguous(memory_format=layout)
    grad = torch.randn(layer(h).shape, dtype=torch.float64, generator=generator)
    y, pull = pullback(layer)(h)
    expected, gradient = by_autograd(layer, h, grad)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pull(grad), gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LEFT_TO_AUTOGRAD)
def test_what_has_no_rule_is_left_to_autograd(name: str, generator: torch.Generator) -> None:
    layer = LEFT_TO_AUTOGRAD[name].double()
    rule = convolution if isinstance(layer, nn.Conv2d) else transposed_convolution
    assert rule(layer) is None  # type: ignore[operator]
    h = torch.randn(2, 4, 7, 7, dtype=torch.float64, generator=generator)
    grad = torch.randn(layer(h).shape, dtype=torch.float64, generator=generator)
    y, pull = pullback(layer)(h)
    expected, gradient = by_autograd(layer, h, grad)
    torch.testing.assert_close((y, pull(grad)), (expected, gradient))


def test_the_product_is_taken_where_it_pays() -> None:
    """Told by the layout: a product's maps are cut from larger ones, a convolution's are whole."""
    small, large = torch.randn(2, 40, 4, 4), torch.randn(2, 40, 32, 32)
    evaluate = transposed_convolution(nn.ConvTranspose2d(40, 20, 4, 2, 1))
    assert evaluate is not None
    whole = torch.channels_last
    assert not evaluate(small)[0].is_contiguous(memory_format=whole)
    assert evaluate(large)[0].is_contiguous(memory_format=whole)
