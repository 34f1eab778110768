"""A diffusion amortizer in a latent space: it learns the codes, and the base stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import Amortizer, LatentModel
from damc.learn import find_method
from damc.learn.abp import ABP, ABPSettings
from damc.learn.latent_space import (
    ABPDiffusion,
    LatentDiffusion,
    LatentDiffusionSettings,
    VAEDiffusion,
)
from damc.learn.vae import VAE


class Halves(nn.Module):
    """An encoder whose codes are 3 or -1 by the sign of x, with little noise."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([1 + 2 * x.sign(), torch.full_like(x, -6.0)], 1)


def test_it_learns_the_codes_of_each_image_and_of_all() -> None:
    torch.manual_seed(0)
    base = VAE(LatentModel(nn.Linear(1, 1), None, 1, 1.0), Halves())
    q = Amortizer(1, 1, embedding=16, widths=(32, 32, 32), solver="multistep", steps=20)
    settings = LatentDiffusionSettings(
        first=0.0, horizon=150, updates=2, amortizer_rate=5e-3, decay="cosine", beta1=0.9
    )
    learner = VAEDiffusion(base, q, settings)
    x = torch.randn(256, 1, generator=torch.Generator().manual_seed(0)).sign()
    for k in range(settings.horizon):
        learner.step(x, torch.arange(256), torch.Generator().manual_seed(k))
    codes = 1 + 2 * x
    inferred = learner.infer(x, steps=0, generator=torch.Generator().manual_seed(1))
    assert float((inferred - codes).abs().median()) < 0.3
    assert float((inferred + codes - 2).abs().median()) > 2  # the other half's codes are far off
    z = learner.sample_latent(500, generator=torch.Generator().manual_seed(2))
    assert float(((z - 1).abs() - 2).abs().median()) < 0.4
    upper = float((z > 1).float().mean())
    assert 0.3 < upper < 0.7


@pytest.mark.parametrize("kind", [VAEDiffusion, ABPDiffusion])
def test_the_second_stage_leaves_the_base_alone(kind: type[LatentDiffusion]) -> None:
    torch.manual_seed(0)
    small: dict[str, Any] = {"posterior_steps": 3, "updates": 1, "horizon": 4, "first": 0.5}
    learner = find_method(kind.name).from_preset("digits-small", **small)
    assert isinstance(learner, kind)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    parts = (learner.base, learner.amortizer)
    moved = []
    for k in range(4):
        before = [[p.detach().clone() for p in part.parameters()] for part in parts]
        learner.step(x, torch.arange(5), torch.Generator().manual_seed(k))
        moved.append(
            [
                any(not a.equal(b) for a, b in zip(old, part.parameters(), strict=True))
                for old, part in zip(before, parts, strict=True)
            ]
        )
        assert learner.ready == (k >= 2)
    assert moved == [[True, False]] * 2 + [[False, True]] * 2


def test_chains_of_abp_go_on_in_the_second_stage() -> None:
    torch.manual_seed(0)
    base = ABP(
        LatentModel(nn.Linear(2, 3), None, 2, 1.0), ABPSettings(sigma=1.0, posterior_steps=2)
    )
    learner = ABPDiffusion(
        base,
        Amortizer(2, 3, embedding=8, widths=(8, 8, 8)),
        LatentDiffusionSettings(sigma=1.0, posterior_steps=2, updates=1, first=0.5, horizon=4),
    )
    x, index = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    for k in range(2):
        learner.step(x, index, torch.Generator().manual_seed(k))
    start = base.chains["posterior"].starts.draw(x, index, None).clone()
    learner.step(x, index, torch.Generator().manual_seed(2))
    end = base.chains["posterior"].starts.draw(x, index, None)
    generator = torch.Generator().manual_seed(2)
    torch.empty(4, 2).normal_(generator=generator)  # what the start of a new chain would use up
    expected = base.chains["posterior"].kernel.run(start, base.model.posterior(x), generator)[0].z
    torch.testing.assert_close(end, expected)


def test_before_the_second_stage_it_is_the_base() -> None:
    torch.manual_seed(0)
    learner = find_method("damc-vae").from_preset("digits-small", horizon=10)
    assert isinstance(learner, VAEDiffusion)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    learner.step(x, torch.arange(5), torch.Generator().manual_seed(0))
    assert learner.infer(x).equal(learner.base.infer(x))
    drawn = learner.sample(3, generator=torch.Generator().manual_seed(1))
    assert drawn.equal(learner.base.sample(3, generator=torch.Generator().manual_seed(1)))
