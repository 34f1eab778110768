"""VI-LEBM: its gradient is that of the bound, and without an energy it is the VAE."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from damc import LatentModel
from damc.learn.presets import find_preset
from damc.learn.vae import VAE, VAESettings
from damc.learn.vi_lebm import VILEBM, VILEBMSettings
from tests.reference.energies import Zero

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
INDEX = torch.arange(6)
SIGMA = 0.4


def make(energy: nn.Module | None, **changes: Any) -> VILEBM:
    torch.manual_seed(0)
    networks = find_preset("digits-small").networks
    built = VILEBM.build(networks, VILEBMSettings(sigma=SIGMA, prior_steps=2, **changes))
    model = LatentModel(built.model.decoder, energy, 8, SIGMA)
    return VILEBM(model, built.encoder, built.settings)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(learner: VILEBM | VAE) -> list[nn.Parameter]:
    return [*learner.model.decoder.parameters(), *learner.encoder.parameters()]


@torch.no_grad()
def distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return sum(float((p - q).abs().sum()) for p, q in zip(a, b, strict=True))


def direct(learner: VILEBM) -> list[Tensor]:
    """The gradient of the bound, written with torch's own distributions."""
    m, log_v = learner.encoder(X).chunk(2, 1)
    q = Normal(m, (log_v / 2).exp())
    z = m + q.scale * torch.empty_like(m).normal_(generator=seeded())
    pixels: Tensor = Normal(learner.model.decoder(z), SIGMA).log_prob(X)  # type: ignore[no-untyped-call]
    likelihood = pixels.flatten(1).sum(1)
    bound = -likelihood + kl_divergence(q, Normal(0.0, 1.0)).sum(1)
    if learner.model.prior.energy is not None:
        bound = bound + learner.model.prior.energy(z)
    return list(torch.autograd.grad(bound.mean(), parameters(learner)))


@pytest.mark.parametrize("energy", [None, nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))])
def test_encoder_and_decoder_follow_the_gradient_of_the_bound(energy: nn.Module | None) -> None:
    learner = make(copy.deepcopy(energy))
    if learner.model.prior.energy is not None:
        with torch.no_grad():
            next(learner.model.prior.energy.parameters()).mul_(30)  # that it may be noticed
    wanted = direct(learner)
    seen: list[list[Tensor]] = []
    learner.optimizers.average = lambda gradients: seen.append([g.clone() for g in gradients])
    learner.step(X, INDEX, seeded())
    for got, true in zip(seen[0], wanted, strict=True):
        torch.testing.assert_close(got / (2 * SIGMA**2), true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("energy", [None, Zero()])
def test_with_an_energy_of_zero_it_is_the_vae(energy: nn.Module | None) -> None:
    learner = make(energy)
    model = LatentModel(copy.deepcopy(learner.model.decoder), None, 8, SIGMA)
    vae = VAE(model, copy.deepcopy(learner.encoder), VAESettings(sigma=SIGMA))
    before = [p.detach().clone() for p in parameters(vae)]
    for k in range(4):
        ours, theirs = learner.step(X, INDEX, seeded(k)), vae.step(X, INDEX, seeded(k))
        torch.testing.assert_close(ours["mse"], theirs["mse"], rtol=1e-4, atol=0.0)
        torch.testing.assert_close(ours["divergence"], theirs["divergence"], rtol=1e-3, atol=1e-6)
    moved, apart = (distance(other, parameters(vae)) for other in (before, parameters(learner)))
    assert apart < 1e-2 * moved  # rounding, which Adam enlarges where the gradient is tiny
    assert torch.allclose(learner.reconstruct(X), vae.reconstruct(X), atol=1e-4)


def test_a_real_energy_parts_from_the_vae_and_learns() -> None:
    energy = find_preset("digits-small").networks.build_energy()
    assert energy is not None
    learner = make(energy, energy_rate=1e-2)
    before = [p.detach().clone() for p in energy.parameters()]
    metrics = learner.step(X, INDEX, seeded())
    assert any(not a.equal(b) for a, b in zip(before, energy.parameters(), strict=True))
    assert {"energy_difference", "divergence", "mse"} <= set(metrics)
    assert learner.infer(X).equal(learner.encoder(X).chunk(2, 1)[0])
