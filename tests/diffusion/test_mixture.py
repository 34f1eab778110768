"""Mixtures of Gaussians under a denoiser."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.diffusion.mixture import BlockMixture
from damc.errors import BadInput
from damc.randomness import global_seed

D = torch.float64


def two_modes(n: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    side = torch.where(torch.rand(n, 1, dtype=D, generator=g) < 0.3, 1.0, -1.0)
    narrow = torch.tensor([0.1, 0.4], dtype=D)
    return side + narrow * torch.randn(n, 2, dtype=D, generator=g)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_density_integrates_to_one_and_fits(blocks: int) -> None:
    mixture = BlockMixture(2, blocks, 4).double()
    mixture.fit(two_modes(4000), torch.Generator().manual_seed(0))
    line = torch.linspace(-5, 5, 401, dtype=D)
    grid = torch.cartesian_prod(line, line)
    mass = mixture.log_prob(grid).exp().sum() * (line[1] - line[0]) ** 2
    assert float(mass) == pytest.approx(1, abs=1e-3)
    exact = two_modes(4000, 1)
    truth = torch.logsumexp(
        torch.stack(
            [
                math.log(share) - ((exact - side) / torch.tensor([0.1, 0.4])).square().sum(1) / 2
                for share, side in ((0.3, 1.0), (0.7, -1.0))
            ]
        ),
        0,
    ) - math.log(2 * math.pi * 0.04)
    excess = float((truth - mixture.log_prob(exact)).mean())  # the divergence of Kullback-Leibler
    if blocks == 1:
        assert -0.01 < excess < 0.02
    else:  # the modes' coordinates depend on each other: log 2 of entropy, with masses .3 and .7
        assert 0.4 < excess < 0.8


@pytest.mark.parametrize("blocks", [1, 2])
def test_draws_have_the_density(blocks: int) -> None:
    """The share of draws in each of four cells is the integral of the density there."""
    mixture = BlockMixture(2, blocks, 4).double()
    mixture.fit(two_modes(4000), torch.Generator().manual_seed(0))
    n = 40_000
    z = mixture.sample(n, torch.Generator().manual_seed(1))
    line = torch.linspace(-5, 5, 801, dtype=D) + 0.00625  # so that cells end at the cuts
    grid = torch.cartesian_prod(line, line)
    mass = mixture.log_prob(grid).exp() * (line[1] - line[0]) ** 2
    cut = torch.tensor([-0.95, 0.8], dtype=D)  # through the modes
    for sides in ((0, 0), (0, 1), (1, 0), (1, 1)):
        side = torch.tensor(sides).bool()
        share = ((z > cut) == side).all(1).double().mean()
        wanted = mass[((grid > cut) == side).all(1)].sum()
        assert abs(float(share - wanted)) < 4 * math.sqrt(0.25 / n) + 2e-3


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_noise_is_the_score_of_the_noised_density(blocks: int) -> None:
    g = torch.Generator().manual_seed(0)
    points = torch.randn(500, 3, dtype=D, generator=g) * torch.tensor([1.0, 0.3, 2.0])
    mixture = BlockMixture(3, blocks, 3).double()
    mixture.fit(points, g)
    angle = torch.tensor([0.2, 0.7, 1.4], dtype=D)
    z = torch.randn(3, 3, dtype=D, generator=g)
    alpha, sigma = angle.cos()[:, None], angle.sin()[:, None]
    # E[eps | z] as an integral over clean points of the mixture, by weights.
    g.manual_seed(1)
    x = points[torch.randint(500, (1,), generator=g)]
    assert mixture.noise(z, angle).shape == z.shape and torch.isfinite(mixture.log_prob(x)).all()
    for i in range(3):
        noised = BlockMixture(3, blocks, 3).double()
        noised.load_state_dict(mixture.state_dict())
        noised.means.mul_(alpha[i])
        noised.variances.mul_(alpha[i].square()).add_(sigma[i].square())
        w = z[i : i + 1].clone().requires_grad_()
        (score,) = torch.autograd.grad(noised.log_prob(w).sum(), w)
        assert torch.allclose(mixture.noise(z, angle)[i], -sigma[i] * score[0])
        assert torch.allclose(mixture.noise(z[i], angle[i]), -sigma[i] * score[0])


def test_an_untrained_amortizer_on_a_mixture_draws_from_it(tmp_path: Path) -> None:
    points = two_modes(4000)
    with global_seed(0):
        q = Amortizer(2, widths=(16, 16, 16), embedding=8, mixture=(1, 4), standardize=True)
    assert q.standardize is not None and q.denoiser.mixture is not None
    q.standardize.fit(points)
    q.denoiser.mixture.fit(q.standardize(points.float()), torch.Generator().manual_seed(0))
    q.save(tmp_path / "q")
    loaded = Amortizer.load(tmp_path / "q")
    z = loaded.sample(2000, generator=torch.Generator().manual_seed(2))
    assert torch.equal(z, q.sample(2000, generator=torch.Generator().manual_seed(2)))
    right = z[:, 0] > 0
    assert abs(float(right.double().mean()) - 0.3) < 0.05
    assert float(z[right, 0].std()) == pytest.approx(0.1, rel=0.25)
    density = loaded.log_prob(z[:4])
    mixture = q.denoiser.mixture.log_prob(q.standardize(z[:4])) - q.standardize.log_scale()
    assert torch.allclose(density, mixture, atol=0.15)


def test_blocks_must_divide() -> None:
    with pytest.raises(BadInput, match="blocks must divide dim"):
        BlockMixture(3, 2, 4)
