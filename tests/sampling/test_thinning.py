"""Thinning keeps the moments of heavy tails that a random choice loses."""

from __future__ import annotations

import torch
from torch import Tensor

from damc.sampling.thinning import thin

D = torch.float64


def student(islands: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    """Draws of a Student t with 3 degrees, and their log-densities."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(islands, n, d, dtype=D, generator=g)
    chi = torch.randn(islands, n, 3, dtype=D, generator=g).square().mean(2, keepdim=True)
    z = z / chi.sqrt()
    return z, -(3 + d) / 2 * torch.log1p(z.square().sum(2) / 3)


def test_sds_of_heavy_tails_survive() -> None:
    z, value = student(8, 20_000, 5)
    index = thin(z, value, 500, torch.Generator().manual_seed(1))
    assert index.shape == (8, 500)
    kept = z.gather(1, index[..., None].expand(-1, -1, 5)).flatten(0, 1)
    plain = z[:, :500].flatten(0, 1)
    sd = z.flatten(0, 1).std(0)
    errors = [float((x.std(0) / sd - 1).abs().max()) for x in (kept, plain)]
    assert errors[0] < 0.03 < errors[1]
    assert ((kept.mean(0) - z.flatten(0, 1).mean(0)) / sd).abs().max() < 0.05


def test_no_draw_is_kept_twice_and_all_strata_are_there() -> None:
    z, value = student(2, 1000, 2)
    index = thin(z, value, 100, torch.Generator().manual_seed(2))
    rank = value.argsort(1).argsort(1).gather(1, index).sort(1).values
    assert bool((rank // 10 == torch.arange(100)).double().mean() > 0.9)
    assert all(len(row.unique()) == 100 for row in index)


def test_more_than_there_are_repeats_some() -> None:
    z, value = student(2, 30, 2)
    index = thin(z, value, 50)
    assert index.shape == (2, 50) and len(index[0].unique()) == 30
