"""VGG16: its input transform, its stack against formulas in float64, its published layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from damc.errors import BadInput
from damc.inversion.vgg import MEAN, VGG16, vgg16_from

CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21)


def features(net: VGG16, x: Tensor, flaw: str = "") -> Tensor:
    """The stack by its indices, from red, green and blue in [-1, 1]."""
    red, green, blue = ((c + 1) / 2 * 255 for c in x.unbind(1))
    b, g, r = MEAN
    if flaw == "red first":
        x = torch.stack([red - r, green - g, blue - b], 1)
    elif flaw == "mean of the other order":
        x = torch.stack([blue - r, green - g, red - b], 1)
    elif flaw == "from 0 to 1":
        x = torch.stack([blue / 255 - b, green / 255 - g, red / 255 - r], 1)
    else:
        x = torch.stack([blue - b, green - g, red - r], 1)
    state = net.state_dict()
    for i in CONVOLUTIONS:
        if i in (5, 10, 17):
            high, wide = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
            tiles = x[:, :, :high, :wide].unfold(2, 2, 2).unfold(3, 2, 2)
            x = tiles.mean((-1, -2)) if flaw == "mean pooling" else tiles.amax((-1, -2))
        columns = F.unfold(x, 3, padding=1)
        weight, bias = state[f"layer{i}.weight"].flatten(1), state[f"layer{i}.bias"][:, None]
        size = x.shape[2:]
        x = (weight @ columns + bias).view(len(x), -1, *size)
        x = x if flaw == "no last ReLU" and i == 21 else x.clamp(min=0)
    return x


def test_features_are_the_formula() -> None:
    net = VGG16(width=4).double()
    x = torch.rand(2, 3, 17, 20, dtype=torch.float64) * 2 - 1
    value = net(x)
    assert value.shape == (2, 32, 2, 2)
    torch.testing.assert_close(value, features(net, x), rtol=1e-10, atol=1e-10)
    flaws = ["red first", "mean of the other order", "from 0 to 1", "mean pooling", "no last ReLU"]
    for flaw in flaws:
        assert (value - features(net, x, flaw)).abs().max() > 1e-3, flaw


def test_the_input_is_left_as_it_was() -> None:
    x = torch.zeros(1, 3, 8, 8)
    VGG16(width=1)(x)
    assert torch.equal(x, torch.zeros(1, 3, 8, 8))


def test_grey_images_are_three_equal_colors() -> None:
    net = VGG16(width=2).double()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(net(x), net(x.repeat(1, 3, 1, 1)))


def test_distance_is_of_each_image_and_its_features() -> None:
    net = VGG16(width=4).double()
    x, y = (torch.rand(3, 3, 16, 16, dtype=torch.float64) * 2 - 1 for _ in range(2))
    y[1] = x[1]
    distance = net.distance(x, y)
    square = (features(net, x) - features(net, y)) ** 2
    torch.testing.assert_close(distance, square.flatten(1).sum(1) / square[0].numel())
    assert distance[1] == 0 and distance[0] > 0 and distance[2] > 0


def test_keys_shapes_and_count_are_those_of_ten_convolutions() -> None:
    with torch.device("meta"):
        net = VGG16()
    outputs = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512)
    wanted = {}
    for i, n, before in zip(CONVOLUTIONS, outputs, (3, *outputs), strict=False):
        wanted |= {f"layer{i}.weight": (n, before, 3, 3), f"layer{i}.bias": (n,)}
    assert {key: tuple(value.shape) for key, value in net.state_dict().items()} == wanted
    assert sum(p.numel() for p in net.parameters()) == 7_635_264


def test_the_fifth_block_of_a_file_is_not_used() -> None:
    net = VGG16(width=2)
    state = dict(net.state_dict())
    for i in (24, 26, 28):
        state |= {f"layer{i}.weight": torch.zeros(16, 16, 3, 3), f"layer{i}.bias": torch.zeros(16)}
    loaded = vgg16_from(state, "vgg16.pth")
    x = torch.rand(1, 3, 8, 8)
    assert torch.equal(loaded(x), net(x)) and not loaded.training
    state["layer31.weight"] = torch.zeros(1)
    with pytest.raises(
        BadInput, match="vgg16.pth must have the keys of VGG16 only, got the key layer31"
    ):
        vgg16_from(state, "vgg16.pth")


@pytest.mark.parametrize("shape", [(2, 2, 8, 8), (2, 3, 7, 8), (3, 8, 8)])
def test_other_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="images must have shape .*got"):
        VGG16(width=1)(torch.zeros(shape))
