"""Ascent: Langevin without noise where that climbs, and never downhill where it would not."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from damc import Langevin, LatentModel
from damc.kernels.ascent import Ascent
from damc.learn.sources import noise_inference

PRECISION = torch.tensor([1.0, 25.0, 100.0], dtype=torch.float64)


def gaussian(z: Tensor) -> Tensor:
    return -(z.square() * PRECISION).sum(1) / 2


def start(generator: torch.Generator, chains: int = 7) -> Tensor:
    return torch.randn(chains, 3, dtype=torch.float64, generator=generator)


def test_it_is_langevin_without_noise_while_that_climbs(generator: torch.Generator) -> None:
    z, scale = start(generator), torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
    for options in ({}, {"scale": scale}):
        state, info = Ascent(0.1, 5, **options).run(z, gaussian)
        expected, _ = Langevin(0.1, 5, noise=False, **options).run(z, gaussian)
        torch.testing.assert_close(state.z, expected.z)
        assert info.acceptance == 1 and info.gradient_calls == 6 * len(z)


def test_a_step_size_that_is_too_large_still_leads_to_the_mode(generator: torch.Generator) -> None:
    kernel, z = Ascent(3.0), start(generator)
    assert gaussian(Langevin(3.0, 5, noise=False).run(z, gaussian)[0].z).max() < -1e6
    state, values = kernel.init(z), [gaussian(z)]
    for _ in range(2000):
        state, _ = kernel.step(state, gaussian)
        values.append(gaussian(state.z))
    assert bool((torch.stack(values).diff(dim=0) >= -1e-9).all())
    assert state.z.abs().max() < 1e-3


def test_only_chains_that_went_downhill_halve_their_step_size() -> None:
    z = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    state, info = Ascent(0.3).step(Ascent(0.3).init(z), gaussian)
    assert isinstance(state.step_size, Tensor) and info.acceptance is not None
    assert state.step_size.flatten().tolist() == [0.3, 0.15]  # 100 s^2 / 2 is 4.5, beyond 2
    assert info.acceptance.tolist() == [1.0, 0.0]
    torch.testing.assert_close(state.z, torch.stack([z[0] * (1 - 0.3**2 / 2), z[1]]))


def test_moves_to_where_nothing_is_known_are_taken_back() -> None:
    def half(z: Tensor) -> Tensor:  # mode at 0, no density beyond -0.5, NaN beyond 2
        value = -z.square().sum(1) / 2
        value = torch.where(z[:, 0] < -0.5, -math.inf, value)
        return torch.where(z[:, 0] > 2, math.nan, value)

    state, _ = Ascent(2.0, 60).run(torch.full((2, 1), 1.5, dtype=torch.float64), half)
    assert state.z.abs().max() < 1e-6


def test_inference_from_noise_never_ends_below_its_start(generator: torch.Generator) -> None:
    decoder = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Unflatten(1, (1, 4, 4)))
    model = LatentModel(decoder, None, 3, sigma=0.01)  # far too narrow a posterior for the step
    x = torch.rand(5, 1, 4, 4, generator=generator)
    infer = noise_inference(model, 0.5, 40)
    before, after = (
        model.posterior(x)(infer(x, moves, False, torch.Generator().manual_seed(0)))
        for moves in (0, None)
    )
    assert bool((after > before).all())
