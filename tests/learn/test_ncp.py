"""The noise-contrastive prior: its weights are the density ratio, its samples the target's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from damc import LatentModel
from damc.learn.ncp import NCPVAE, NCPSettings
from damc.learn.vae import VAE
from damc.nets import mlp_energy

MEAN, DEVIATION = torch.tensor([1.0, -0.5]), torch.tensor([0.7, 1.2])


class Fixed(nn.Module):
    """An encoder that answers every x with the same N(m, v): their aggregate is known."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([MEAN, 2 * DEVIATION.log()]).expand(len(x), -1)


@pytest.fixture(scope="module")
def trained() -> NCPVAE:
    torch.manual_seed(0)
    base = VAE(LatentModel(nn.Linear(2, 3), None, 2, 0.5), Fixed())
    settings = NCPSettings(first=0.0, horizon=400, energy_rate=1e-2, decay="cosine", beta1=0.9)
    learner = NCPVAE(base, mlp_energy(2, (32, 32), "silu"), settings)
    generator = torch.Generator().manual_seed(1)
    x = torch.zeros(1024, 3)
    for _ in range(settings.horizon):
        learner.step(x, torch.arange(1024), generator)
    return learner.eval()


def test_its_weights_are_the_ratio_of_two_gaussians(trained: NCPVAE) -> None:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(4000, 2, generator=generator) * DEVIATION + MEAN
    target = torch.distributions.Normal(MEAN, DEVIATION).log_prob(z).sum(1)
    noise = torch.distributions.Normal(torch.zeros(2), 1.0).log_prob(z).sum(1)
    with torch.no_grad():
        log_r = -trained.energy(z)
    error = (log_r - (target - noise)).square().mean().sqrt()
    assert float(error) < 0.15
    # The bar is far below what knowing nothing, or the ratio upside down, would give.
    assert float((target - noise).square().mean().sqrt()) > 0.8
    assert float((-log_r - (target - noise)).square().mean().sqrt()) > 1.5


@pytest.mark.parametrize(("source", "tolerance"), [("resampling", 0.1), ("energy", 0.15)])
def test_its_samples_are_the_target(trained: NCPVAE, source: str, tolerance: float) -> None:
    n = 2000  # standard errors: 0.016 to 0.027 of the mean, 0.011 to 0.019 of the deviation
    z = trained.sample_latent(n, source, generator=torch.Generator().manual_seed(3))
    assert float((z.mean(0) - MEAN).abs().max()) < tolerance
    assert float((z.std(0) - DEVIATION).abs().max()) < tolerance
    gaussian = trained.sample_latent(n, "gaussian", generator=torch.Generator().manual_seed(3))
    assert float((gaussian.mean(0) - MEAN).abs().max()) > 0.8


def test_one_proposal_is_the_base_prior(trained: NCPVAE) -> None:
    weights = {**trained.state_dict()}
    single = NCPVAE(
        VAE(LatentModel(nn.Linear(2, 3), None, 2, 0.5), Fixed()),
        mlp_energy(2, (32, 32), "silu"),
        NCPSettings(first=0.0, horizon=400, proposals=1),
    )
    single.load_state_dict(weights)
    single.iteration = 401
    z = single.sample_latent(4, "resampling", generator=torch.Generator().manual_seed(4))
    same = torch.empty(4, 1, 2).normal_(generator=torch.Generator().manual_seed(4))
    assert z.equal(same[:, 0])


def test_the_score_counts_the_corrected_prior(trained: NCPVAE) -> None:
    x = torch.zeros(200, 3)
    score = trained.anomaly_score(x, generator=torch.Generator().manual_seed(5)).mean()
    base = trained.base.anomaly_score(x, generator=torch.Generator().manual_seed(5)).mean()
    # E_q E = -KL(q || N(0, I)) where q is the target itself: the corrected prior fits q exactly.
    divergence = (DEVIATION**2 + MEAN**2 - 1 - 2 * DEVIATION.log()).sum() / 2
    assert float(score - base) == pytest.approx(-float(divergence), abs=0.15)
