"""The two-stage VAE: the second VAE learns the law of the first one's codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput, LatentModel
from damc.learn.two_stage import TwoStageSettings, TwoStageVAE
from damc.learn.vae import VAE, VAESettings


class TwoHeaps(nn.Module):
    """An encoder that knows the sign of x: codes lie around -2 and 2, where N(0, I) is thin."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([2 * x.sign(), torch.full_like(x, -4.0)], 1)


def learn(iterations: int) -> TwoStageVAE:
    torch.manual_seed(0)
    base = VAE(LatentModel(nn.Linear(1, 1), None, 1, 1.0), TwoHeaps(), VAESettings(sigma=1.0))
    settings = TwoStageSettings(
        first=0.0, horizon=800, hidden=64, decoder_rate=1e-2, beta1=0.9, decay="cosine"
    )
    learner = TwoStageVAE(base, settings)
    generator = torch.Generator().manual_seed(1)
    x = torch.linspace(-1, 1, 256)[:, None]
    for _ in range(iterations):
        learner.step(x, torch.arange(256), generator)
    return learner


def heaps(z: Tensor) -> tuple[float, float]:
    """How many are near a heap, within four of its standard deviations, and how many of those
    in the upper one."""
    near = (z.abs() - 2).abs() < 4 * 0.135
    return float(near.float().mean()), float((z[near] > 0).float().mean())


def test_its_samples_have_the_law_of_the_codes() -> None:
    learner = learn(800)
    near, upper = heaps(learner.sample_latent(2000, generator=torch.Generator().manual_seed(2)))
    assert near > 0.55 and 0.4 < upper < 0.6
    gaussian = learner.sample_latent(2000, "gaussian", generator=torch.Generator().manual_seed(2))
    assert heaps(gaussian)[0] < 0.2


def test_until_the_second_stage_it_draws_from_the_first_prior() -> None:
    learner = learn(0)
    assert learner.sources == ("gaussian",) and learn(1).sources == ("second", "gaussian")
    drawn = learner.sample_latent(5, generator=torch.Generator().manual_seed(2))
    assert drawn.equal(torch.empty(5, 1).normal_(generator=torch.Generator().manual_seed(2)))
    with pytest.raises(BadInput, match="source of vae-2stage must be gaussian"):
        learner.sample_latent(5, "second")


def test_the_noise_of_the_second_decoder_is_in_the_samples() -> None:
    learner = learn(1)
    with torch.no_grad():
        learner.second.log_sigma.fill_(3.0)
    z = learner.sample_latent(4000, generator=torch.Generator().manual_seed(2))
    assert abs(float(z.std()) / 20.1 - 1) < 0.06  # e^3 = 20.1, with a standard error of 1.1 %
