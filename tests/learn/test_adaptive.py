"""Adaptive contrastive estimation: the product of its ratios is the ratio of the ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput, LatentModel
from damc.kernels.base import Info
from damc.learn.adaptive import AdaptiveCE, AdaptiveCESettings
from damc.learn.parts import Chain
from damc.nets import mlp_energy
from damc.nets.ratios import Ratios

MEAN, DEVIATION = 2.0, 0.4


class Known(Chain):
    """Posterior chains that end in N(2, 0.4^2), whatever the image."""

    def move(
        self, x: Tensor, z: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Info]:
        zero = z.new_zeros(())
        return MEAN + DEVIATION * z, Info(zero, zero, zero, 0)


def learn(stages: int, horizon: int = 500) -> AdaptiveCE:
    torch.manual_seed(0)
    settings = AdaptiveCESettings(
        stages=stages,
        horizon=horizon,
        energy_rate=1e-2,
        decay="cosine",
        beta1=0.9,
        prior_steps=10,
        prior_step_size=0.4,
    )
    ratios = Ratios(*(mlp_energy(1, (32, 32), "silu") for _ in range(stages)))
    learner = AdaptiveCE(LatentModel(nn.Linear(1, 2), ratios, 1, 1.0), settings)
    chain = learner.chains["posterior"]
    learner.chains["posterior"] = Known(chain.starts, chain.kernel, chain.target)
    generator = torch.Generator().manual_seed(1)
    x = torch.zeros(256, 2)
    for _ in range(horizon):
        learner.step(x, torch.arange(256), generator)
    return learner


def error(learner: AdaptiveCE) -> float:
    """Standard deviation of log r - log(N(2, 0.4^2) / N(0, 1)) over the target."""
    z = MEAN + DEVIATION * torch.randn(2000, 1, generator=torch.Generator().manual_seed(2))
    target = -((z - MEAN) / DEVIATION).square().sum(1) / 2
    with torch.no_grad():
        wrong = -learner.ratios(z) - (target + z.square().sum(1) / 2)
    return float(wrong.std())


def test_the_product_of_ratios_is_the_ratio_of_two_gaussians() -> None:
    learner = learn(stages=2)
    both = error(learner)
    assert learner.ratios.finished == 2 and both < 0.2
    z = learner.sample_latent(2000, "energy", generator=torch.Generator().manual_seed(3))
    # Langevin with this step widens a Gaussian by 1 / (1 - s^2 / (4 v)) (docs/conventions.md).
    wider = DEVIATION / (1 - 0.4**2 / (4 * DEVIATION**2)) ** 0.5
    assert float(z.mean()) == pytest.approx(MEAN, abs=0.05)
    assert float(z.std()) == pytest.approx(wider, abs=0.04)
    # The first ratio alone, and none, are further off.
    learner.ratios.finish(1)
    first = error(learner)
    learner.ratios.finish(0)
    assert both < 0.7 * first < 0.7 * error(learner)


def make(**changes: Any) -> AdaptiveCE:
    torch.manual_seed(0)
    usual = {"stages": 2, "horizon": 6, "posterior_steps": 3, "prior_steps": 4, "sigma": 0.5}
    settings = AdaptiveCESettings(**{**usual, **changes})
    ratios = Ratios(mlp_energy(3, (8,)), mlp_energy(3, (8,)))
    return AdaptiveCE(LatentModel(nn.Linear(3, 5), ratios, 3, 0.5), settings)


X = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_a_stage_learns_its_ratio_and_no_other() -> None:
    learner = make()
    moved, names = [], ("energies.0", "energies.1")
    for k in range(8):
        before = {name: p.detach().clone() for name, p in learner.ratios.named_parameters()}
        metrics = learner.step(X, torch.arange(6), torch.Generator().manual_seed(k))
        now = dict(learner.ratios.named_parameters())
        changed = [
            any(not before[p].equal(now[p]) for p in before if p.startswith(name)) for name in names
        ]
        moved.append((changed[0], changed[1], "contrast" in metrics))
    assert moved[:3] == [(True, False, True)] * 3
    assert moved[3:6] == [(False, True, True)] * 3
    assert moved[6:] == [(False, False, False)] * 2  # the horizon is over
    ratios = [learner.optimizers.rates[f"ratio{i}"] for i in range(2)]
    rates = [[round(rate.at(k), 9) for k in (0, 3)] for rate in ratios]
    assert rates[1] == [1e-4, 1e-4]  # a rate falls from its own stage on


def test_the_first_stage_needs_no_prior_chain_and_nothing_is_wasted() -> None:
    learner = make()
    passes = [0, 0, 0]
    parts = (learner.model.decoder, *learner.ratios.energies)
    for i, part in enumerate(parts):

        def count(*_: Any, i: int = i) -> None:
            passes[i] += 1

        part.register_forward_hook(count)
    learner.step(X, torch.arange(6), torch.Generator().manual_seed(0))
    assert passes == [3 + 1, 1, 0]
    learner.iteration = 3
    learner.step(X, torch.arange(6), torch.Generator().manual_seed(0))
    # Moves on the posterior and the prior, then one pass of the ratio that learns.
    assert passes == [2 * (3 + 1), 1 + 3 + 4, 1]


def test_loaded_weights_know_their_stage() -> None:
    learner, other = make(), make()
    for k in range(6):
        learner.step(X, torch.arange(6), torch.Generator().manual_seed(k))
    other.load_state_dict(learner.state_dict())
    z = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    assert other.ratios.finished == 2 and other.ratios(z).equal(learner.ratios(z))


def test_bad_input_is_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="stages must be at least 1"):
        make(stages=0)
    with pytest.raises(BadInput, match="got 2 ratios for 3 stages"):
        make(stages=3)
    with pytest.raises(BadInput, match="must be Ratios, got Energy"):
        AdaptiveCE(LatentModel(nn.Linear(3, 5), mlp_energy(3), 3, 0.5))
    with pytest.raises(BadInput, match="horizon must be at least 2, since stages are shares"):
        make(horizon=1)
