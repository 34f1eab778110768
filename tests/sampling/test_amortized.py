"""The amortized sampler: it learns scores, draws the target, and its weights tell the evidence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import constraints

import damc
from damc import Amortizer, BadInput, assess
from damc.diffusion.mixture import BlockMixture
from damc.randomness import global_seed
from damc.sampling.amortized import (
    Sampler,
    _keep_if_better,
    _loss,
    ancestral_paths,
    learn,
    mixture_of,
    network,
)
from damc.sampling.supports import Support

D = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def log_prob(z: Tensor) -> Tensor:
    """A skewed pair: a Gaussian, and the log of a Gamma variable of shape 2, normalized."""
    a, b = z[:, 0] / 2, z[:, 1]
    return -a.square() / 2 - math.log(2 * math.sqrt(2 * math.pi)) + 2 * b - b.exp()


def draw(n: int, seed: int = 0) -> Tensor:
    g = seeded(seed)
    a = 2 * torch.randn(n, dtype=D, generator=g)
    b = (-torch.rand(2, n, dtype=D, generator=g).log()).sum(0).log()
    return torch.stack([a, b], 1)


@pytest.fixture(scope="module")
def q() -> Amortizer:
    """Trained on exact draws for some seconds."""
    z = draw(10_000)
    grad = torch.stack([-z[:, 0] / 4, 2 - z[:, 1].exp()], 1)
    with global_seed(0):
        q = Amortizer(2, embedding=8, widths=(32, 32, 32), residual=False, standardize=True)
    learn(q, z, grad, iterations=300, batch=256, generator=seeded(1))
    return q


def test_it_learns_from_particles_and_their_gradients(q: Amortizer) -> None:
    paths = ancestral_paths(q, draw(2000, 1), seeded(2))
    sampler = Sampler(q, log_prob, draw(2000, 3), paths)
    x, w = sampler.weighted(2000, generator=seeded(4))
    assert x.shape == (2000, 2) and x.dtype == D
    assert abs(w.log_evidence) < max(0.05, 4 * w.log_evidence_error)
    assert w.elbo < 0.02 and w.eubo > -0.02 and 0 < w.eubo - w.elbo < 0.9
    assert w.k_hat < 0.7 and w.ess > 1000
    share = torch.softmax(w.log_weights, 0)
    mean, exact = (share[:, None] * x).sum(0), draw(200_000, 5)
    assert ((mean - exact.mean(0)) / exact.std(0)).abs().max() < 0.15


def test_gradients_take_the_noise_out_of_the_regression() -> None:
    """On a Gaussian the mixed target is the score itself: its spread around the mean is 0."""
    g = seeded(6)
    v, eps = torch.randn(2, 5000, 1, dtype=D, generator=g)
    alpha, sigma = math.cos(0.7), math.sin(0.7)
    c = sigma**2 / (alpha**2 + sigma**2)
    wanted = c * eps - (1 - c) * (sigma / alpha) * (-v)
    torch.testing.assert_close(wanted, sigma * (alpha * v + sigma * eps))


def test_a_sampler_on_a_support_draws_there_and_has_its_density(q: Amortizer) -> None:
    """The exponential of the second coordinate lies on the half-line."""
    support = Support([constraints.real, constraints.positive], 2)
    paths = ancestral_paths(q, draw(500), seeded(7))
    sampler = Sampler(q, log_prob, draw(500), paths, None, support)
    x = sampler.sample(200, generator=seeded(8))
    assert bool((x[:, 1] > 0).all())
    free = torch.stack([x[:, 0], x[:, 1].log()], 1)[:20]
    exact = q.log_prob(free).double() - free[:, 1]
    torch.testing.assert_close(sampler.log_prob(x[:20]), exact)


def test_an_assessment_tells_a_good_sampler_from_bad_ones(q: Amortizer) -> None:
    good = assess(q, log_prob, n=1000, exact=draw(1000, 9))
    assert good.trusted and good.report.startswith("all checks passed"), good.report
    assert good.samples.shape == (1000, 2) and good.weights.eubo > good.weights.elbo

    def moved(z: Tensor) -> Tensor:
        return log_prob(z - 1.5)

    def another_mode(z: Tensor) -> Tensor:
        return torch.logaddexp(log_prob(z), log_prob(z - torch.tensor([40.0, 0.0], dtype=z.dtype)))

    shifted = assess(q, moved, n=1000)
    assert not shifted.trusted and "the kernel" in shifted.report
    lost = assess(q, another_mode, n=1000)
    assert not lost.trusted and "it never draws from" in lost.report


def test_assess_refuses_what_it_cannot_judge(q: Amortizer) -> None:
    with pytest.raises(BadInput, match="q must be an Amortizer, got str"):
        assess("q", log_prob)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="without a context"):
        assess(Amortizer(2, context=3), log_prob)
    with pytest.raises(BadInput, match=r"exact must have shape \(m, 2\)"):
        assess(q, log_prob, exact=torch.zeros(5, 3))
    with pytest.raises(BadInput, match="n must be a positive whole number"):
        assess(q, log_prob, n=0)


def test_the_likelier_of_a_mixture_and_a_product_of_marginals_is_taken() -> None:
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 5, dtype=D, generator=g)
    independent = torch.where(torch.rand(4000, 5, generator=g) < 0.3, 4.0, -4.0) + noise
    together = torch.where(torch.rand(4000, 1, generator=g) < 0.3, 4.0, -4.0) + noise
    assert mixture_of(independent, g).log_weights.shape == (5, 8)
    assert mixture_of(together, g).log_weights.shape == (1, 32)


def test_a_network_that_makes_the_mixture_worse_is_silenced() -> None:
    g = torch.Generator().manual_seed(0)
    v = torch.randn(2000, 2, generator=g)
    one = torch.ones(2)
    with global_seed(0):
        q = network(2, BlockMixture(2, 1, 4))  # N(0, I), which is right
        last = q.denoiser.blocks[-1]
        torch.nn.init.normal_(last.w1_w4.weight, std=0.1)
    _keep_if_better(q, v, -v, one, g)
    assert float(last.w1_w4.weight.abs().max()) == 0
    assert float(_loss(q, v, -v, one, g)) < 1e-9  # no variance is left where p is Gaussian
    with torch.no_grad():
        assert q.denoiser.mixture is not None
        q.denoiser.mixture.means.fill_(0.2)  # now wrong, by a constant times sigma alpha
        last.w2_w3.weight.fill_(0.0)
        last.w1_w4.bias[2:].fill_(0.05)
    kept = last.w1_w4.bias.clone()
    _keep_if_better(q, v, -v, one, g)
    assert torch.equal(last.w1_w4.bias, kept)


def test_learning_needs_an_amortizer_that_standardizes() -> None:
    z = torch.zeros(10, 2)
    with pytest.raises(BadInput, match="standardize=True"):
        learn(Amortizer(2), z, z, iterations=1, batch=2)


@pytest.mark.slow
def test_draws_have_a_sampler() -> None:
    """Two far modes of unequal mass: weights correct the sampler's draws."""

    def two(z: Tensor) -> Tensor:
        left, right = -(z + 10).square().sum(1) / 2, -(z - 10).square().sum(1) / 2
        return torch.logaddexp(math.log(0.3) + left, math.log(0.7) + right) - math.log(2 * math.pi)

    draws = damc.sample(two, 2, amortize=True)
    assert draws.trusted and abs(draws.checks["sampler evidence gap"]) < 0.2
    x, w = draws.sampler.weighted(5000, generator=seeded(1))
    assert w.eubo - w.elbo < 0.5
    right = float((torch.softmax(w.log_weights, 0) * (x[:, 0] > 0)).sum())
    assert abs(right - 0.7) < 0.05
    assert draws.sampler is draws.sampler
