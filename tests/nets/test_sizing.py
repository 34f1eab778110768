"""Networks and settings sized by images."""

from __future__ import annotations

import pytest
import torch

from damc.errors import BadInput
from damc.nets.sizing import latent_size, networks_for

SHAPES = [(1, 8, 8), (3, 16, 9), (1, 28, 28), (3, 32, 32), (1, 48, 64), (3, 33, 130), (1, 8, 512)]


@pytest.mark.parametrize("shape", SHAPES)
def test_networks_take_and_make_images_of_the_shape(shape: tuple[int, int, int]) -> None:
    networks = networks_for(shape, 500)
    d = networks.latent_dim
    x = networks.build_decoder()(torch.randn(2, d))
    assert x.shape == (2, *shape) and x.abs().max() <= 1
    amortizer = networks.build_amortizer()
    assert amortizer.encoder is not None
    assert amortizer.encoder(x).shape == (2, networks.embedding)


def test_the_largest_images_make_no_large_networks() -> None:
    networks = networks_for((3, 512, 512), 100_000)
    parts = [networks.build_decoder(), networks.build_amortizer()]
    assert sum(p.numel() for part in parts for p in part.parameters()) < 20e6


def test_latent_dimensions_follow_size_and_number() -> None:
    sizes = [latent_size(shape, 10**6) for shape in ((1, 8, 8), (1, 28, 28), (3, 32, 32))]
    assert sizes == [8, 24, 48] and latent_size((3, 512, 512), 10**6) == 128
    assert latent_size((3, 64, 64), 1000) == 104 and latent_size((3, 64, 64), 100) == 8


def test_sides_outside_are_refused() -> None:
    for shape in ((1, 7, 8), (3, 8, 513)):
        with pytest.raises(BadInput, match="8 to 512 pixels"):
            networks_for(shape, 100)
