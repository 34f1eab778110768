"""Decoders with layers of latent variables."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from damc import BadInput
from damc.learn.presets import PRESETS
from damc.nets.hierarchy import Hierarchy, conv_hierarchy, layer_sizes, mlp_hierarchy


def test_the_paper_s_sizes_where_a_single_layer_has_100() -> None:
    assert layer_sizes(100) == (64, 64, 64, 96, 128) and sum(layer_sizes(100)) == 416
    assert all(size >= 1 for size in layer_sizes(1))


def test_layers_are_what_the_equation_says() -> None:
    g = mlp_hierarchy((2, 3), 4, nn.Linear(4, 5))
    z = torch.randn(6, 5)
    u1 = g.projections[0](z[:, :2])
    h1 = u1 + g.blocks[0](u1)
    u2 = h1 + g.projections[1](z[:, 2:])
    torch.testing.assert_close(g(z), g.head(u2 + g.blocks[1](u2)))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 9, 14)])
def test_convolutions_make_images_of_any_shape_from_every_part(shape: tuple[int, ...]) -> None:
    g = conv_hierarchy((2, 3, 4), shape, width=8)
    z = torch.randn(2, 9, requires_grad=True)
    image = g(z)
    assert image.shape == (2, *shape) and float(image.detach().abs().max()) <= 1
    (gradient,) = torch.autograd.grad(image.square().sum(), z)
    assert bool((gradient.abs() > 0).all())


def test_chains_are_independent_of_each_other() -> None:
    """No normalization over the batch: an image depends on its own z."""
    g = conv_hierarchy((2, 3), (1, 8, 8), width=8)
    z = torch.randn(4, 5)
    torch.testing.assert_close(g(z)[:2], g(z[:2]))


@pytest.mark.parametrize("name", ["digits-small", "cifar10-small", "mnist"])
def test_every_kind_of_preset_has_one(name: str) -> None:
    networks = PRESETS[name].networks
    sizes = layer_sizes(networks.latent_dim)
    g = networks.build_hierarchy(sizes)
    assert g(torch.randn(2, sum(sizes))).shape == (2, *networks.shape)


def test_layers_that_do_not_match_are_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="one of each for every layer"):
        Hierarchy((2, 3), [nn.Linear(2, 4)], [nn.Identity()], nn.Identity())
