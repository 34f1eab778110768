"""A mixture refined by a diffusion model: it begins as the mixture and learns what that misses."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import torch
import torch.distributions as D
from torch import Tensor

from damc.amortize.mixture import GaussianMixture
from damc.amortize.scales import fit_scales, scale_grid
from damc.errors import BadInput
from damc.learn.prior import RefinedMixture
from damc.learn.starts import Store


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ring(n: int, seed: int = 0) -> Tensor:
    """Points near a circle, which two Gaussians do not describe."""
    angle = torch.rand(n, generator=seeded(seed)) * 2 * torch.pi
    circle = torch.stack([angle.cos(), angle.sin()], 1) * 3
    return circle + 0.2 * torch.randn(n, 2, generator=seeded(seed + 1))


def stored(z: Tensor) -> Store:
    store = Store(len(z), z.shape[1])
    store.add(z)
    return store


def test_before_it_learns_it_is_the_mixture() -> None:
    q = RefinedMixture(2, 2)
    q.fit(stored(ring(2000)))
    exact = GaussianMixture.fit(ring(2000), 2)
    z, w = q.sample(4000, seeded(5)), exact.sample(4000, seeded(6))
    error = (z.mean(0) - w.mean(0)).abs() / (2 * w.var(0) / 4000).sqrt()
    assert error.max() < 4.5
    torch.testing.assert_close(z.T.cov(), w.T.cov(), rtol=0.12, atol=0.12)
    torch.testing.assert_close(q.mixture.log_prob(z), exact.log_prob(z), rtol=1e-4, atol=1e-4)


def test_learning_adds_what_the_mixture_misses() -> None:
    torch.manual_seed(0)
    q, store, generator = RefinedMixture(2, 2), stored(ring(2000)), seeded(3)
    q.fit(store)
    optimizer = torch.optim.Adam(q.parameters(), lr=2e-3)

    def width() -> float:
        """The spread of radii, 0.2 on the ring."""
        return float(q.sample(1500, seeded(4)).norm(dim=1).std())

    before = width()
    for _ in range(300):
        optimizer.zero_grad()
        q.loss(store.draw(256, generator), generator).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert before > 0.7 and width() < 0.6 * before


def test_components_keep_their_meaning_when_fitted_again() -> None:
    q = RefinedMixture(2, 2)
    q.fit(stored(ring(2000)))
    means = q.means.clone()
    q.fit(stored(ring(2000, seed=10) + 0.1))
    assert (q.means - means).norm(dim=1).max() < 0.8 < (means[0] - means[1]).norm()


def test_few_points_have_fewer_components() -> None:
    q = RefinedMixture(2, 4)
    q.fit(stored(ring(7)))  # two components have three points each
    assert int(q.fitted) == 2 and q.weights[2:].eq(0).all()
    assert q.sample(20, seeded()).isfinite().all() and q.loss(ring(5), seeded()).isfinite()
    q.fit(stored(ring(100)))
    assert int(q.fitted) == 4


def test_a_component_has_seven_times_as_many_stored_points_as_dimensions() -> None:
    sizes = {2: 40, 24: 40, 64: 22, 128: 11, 2000: 1}  # of 10,000 points, by their dimensions
    found = {d: RefinedMixture.of(Store(10_000, d), 40).components for d in sizes}
    assert found == sizes


def test_points_are_whitened_in_components_by_their_probability() -> None:
    fitted, q = RefinedMixture(2, 3), RefinedMixture(2, 3)
    fitted.fit(stored(ring(500)))
    q.load_state_dict(fitted.state_dict())  # the inverses are not stored, but made again
    z = ring(20, seed=7)
    white, share = q.whitened(z)
    each = torch.stack(
        [
            w * torch.distributions.MultivariateNormal(m, scale_tril=f).log_prob(z).exp()
            for w, m, f in zip(q.weights, q.means, q.factors, strict=True)
        ],
        1,
    )
    torch.testing.assert_close(share, each / each.sum(1, keepdim=True), rtol=1e-3, atol=1e-5)
    back = q.means[:, None] + white @ q.factors.mT
    torch.testing.assert_close(back, z.expand(3, -1, -1), rtol=1e-4, atol=1e-5)


def heavy(n: int, seed: int = 0) -> Tensor:
    """Points of four dimensions, one normal for each but a scale for all: sd of log s is 0.5."""
    s = (0.5 * torch.randn(n, 1, generator=seeded(seed))).exp()
    return 2.0 + s * torch.randn(n, 4, generator=seeded(seed + 1)) @ torch.randn(
        4, 4, generator=seeded(99)
    )


def radii(z: Tensor, like: Tensor) -> Tensor:
    factor = torch.linalg.cholesky(like.T.cov())
    apart = (z - like.mean(0)).T
    return torch.linalg.solve_triangular(factor, apart, upper=False).norm(dim=0)


def test_scales_describe_tails_that_one_gaussian_does_not() -> None:
    z, unseen = heavy(4000), heavy(4000, seed=10)
    plain, scaled = RefinedMixture(4, 1), RefinedMixture(4, 1, scales=9)
    levels = torch.tensor([0.05, 0.5, 0.95, 0.99])
    wanted = radii(unseen, unseen).quantile(levels)
    errors = []
    for q in (plain, scaled):
        q.fit(stored(z))
        found = radii(q.sample(4000, seeded(3)), unseen).quantile(levels)
        errors.append((found / wanted - 1).abs())
    # Two sets of 4,000 points differ by less than 0.06.
    again = radii(heavy(4000, seed=20), unseen).quantile(levels)
    assert (again / wanted - 1).abs().max() < 0.08
    assert errors[1].max() < 0.1 and errors[0].max() > 0.2
    torch.testing.assert_close(scaled.shares.sum(1), torch.ones(1))


def test_one_scale_is_a_mixture_of_gaussians() -> None:
    z = ring(1000).double()
    begin = GaussianMixture.fit(z, 3, iterations=2)
    ones = torch.ones(1, dtype=z.dtype), torch.ones(3, 1, dtype=z.dtype)
    for k in (1, 2):
        found, shares = fit_scales(z, begin, *ones, iterations=k)
        known = GaussianMixture.fit(z, 3, start=begin, iterations=k)
        assert shares.eq(1).all()
        for one, other in zip(astuple(found), astuple(known), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_expectation_maximization_of_scales_goes_uphill() -> None:
    z, scales = heavy(800).double(), scale_grid(5).double()
    mixture = GaussianMixture.fit(z, 2, iterations=2)
    shares, likelihoods = torch.full((2, 5), 0.2, dtype=z.dtype), []
    for _ in range(8):
        log_each = [
            w.log() + p.log() + D.MultivariateNormal(m, scale_tril=s * f).log_prob(z)
            for w, m, f, row in zip(
                mixture.weights, mixture.means, mixture.factors, shares, strict=True
            )
            for s, p in zip(scales, row, strict=True)
        ]
        likelihoods.append(torch.stack(log_each).logsumexp(0).mean())
        mixture, shares = fit_scales(z, mixture, scales, shares, iterations=1)
    gains = torch.stack(likelihoods).diff()
    assert gains.min() > -1e-6 and gains.sum() > 0.05


def test_points_are_whitened_at_scales_by_their_probability() -> None:
    fitted, q = RefinedMixture(4, 2, scales=3), RefinedMixture(4, 2, scales=3)
    fitted.fit(stored(heavy(900)))
    q.load_state_dict(fitted.state_dict())
    z = heavy(20, seed=7)
    _, share = q.whitened(z)
    each = torch.stack(
        [
            w * p * D.MultivariateNormal(m, scale_tril=s * f).log_prob(z).exp()
            for w, m, f, row in zip(q.weights, q.means, q.factors, q.shares, strict=True)
            for s, p in zip(q.scales, row, strict=True)
        ],
        1,
    )
    torch.testing.assert_close(share, each / each.sum(1, keepdim=True), rtol=1e-3, atol=1e-5)
    assert q.loss(z, seeded()).isfinite() and torch.equal(
        q.sample(5, seeded()), fitted.sample(5, seeded())
    )


def test_scales_need_enough_points_to_go_on_from_where_they_were() -> None:
    q = RefinedMixture(2, 4, scales=3)
    q.fit(stored(ring(7)))  # two components
    assert int(q.fitted) == 2 and q.sample(20, seeded()).isfinite().all()
    q.fit(stored(ring(400)))
    assert int(q.fitted) == 4
    means = q.means.clone()
    q.fit(stored(ring(400, seed=10)))
    assert (q.means - means).norm(dim=1).max() < 1.0
    q.fit(stored(ring(7)))
    assert int(q.fitted) == 2 and q.sample(20, seeded()).isfinite().all()


def test_before_it_is_fitted_it_is_normal_whatever_its_scales() -> None:
    q = RefinedMixture(2, 3, scales=5)
    torch.testing.assert_close(q.scales[2], torch.tensor(1.0))
    z = q.sample(3000, seeded(2))
    # Variances of 3,000 normal numbers have a standard error of 0.026.
    assert (z.var(0) - 1).abs().max() < 0.12 and z.mean(0).abs().max() < 0.09
    with pytest.raises(BadInput, match="store_scales must be odd, got 2"):
        RefinedMixture(2, 3, scales=2)


def test_expectation_maximization_of_scales_ends_where_the_likelihood_is_flat() -> None:
    z, scales = heavy(800).double(), scale_grid(5).double()
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T.cov())).mT  # no direction is narrow
    begin = GaussianMixture.fit(z, 1)
    shares = torch.full((1, 5), 0.2, dtype=z.dtype)
    found, shares = fit_scales(z, begin, scales, shares, iterations=400)

    def steepest(m: Tensor, factor: Tensor) -> float:
        m, factor = m.clone().requires_grad_(), factor.clone().requires_grad_()
        log_each = [
            p.log() + D.MultivariateNormal(m, scale_tril=s * factor).log_prob(z)
            for s, p in zip(scales, shares[0], strict=True)
        ]
        mean = torch.stack(log_each).logsumexp(0).mean()
        slopes = torch.autograd.grad(mean, (m, factor))
        return max(float((factor.detach().T @ slope).abs().max()) for slope in slopes)

    # The floor under every variance, 1e-4 of the mean one, is all that is left of it.
    assert steepest(found.means[0], found.factors[0]) < 2e-3
    assert steepest(found.means[0], 1.05 * found.factors[0]) > 2e-2


def test_the_diffusion_model_learns_points_at_the_scale_one() -> None:
    z, seen = heavy(4000), []
    q = RefinedMixture(4, 1, scales=9)
    q.fit(stored(z))

    def loss(v: Tensor, *_: object, **__: object) -> Tensor:
        seen.append(v)
        return v.sum()

    q.amortizer.loss = loss  # type: ignore[method-assign]
    q.loss(z, seeded())
    squares = seen[0].square().sum(1)
    # Of normal numbers 4, with a standard deviation of sqrt(8); whatever the scale of their point.
    assert abs(float(squares.mean()) - 4) < 0.4 and float(squares.std()) < 3.4
