"""A mixture refined by a diffusion model: it begins as the mixture and learns what that misses."""

from __future__ import annotations

import torch
from torch import Tensor

from damc.amortize.mixture import GaussianMixture
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
