from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from damc.errors import BadInput
from damc.toy.pinwheel import Pinwheel

LogProb = Callable[[Tensor], Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lattice(n: int, half: float) -> Tensor:
    side = (torch.arange(n, dtype=torch.float64) + 0.5) * (2 * half / n) - half
    return torch.cartesian_prod(side, side)


def slow_log_prob(
    z: Tensor, arms: tuple[int, ...] = (0, 1), jacobian: bool = True, nodes: int = 1201
) -> Tensor:
    """The paper's pinwheel by a plain scan for sign changes of `r - Re[w exp(i theta(r))]`."""
    density = []
    for part in torch.split(z.double(), 2000):
        w = torch.complex(part[:, 0], part[:, 1])[:, None] / 2
        total = torch.zeros(len(part), dtype=torch.float64)
        for arm in arms:
            r = torch.linspace(-3.6, 3.6, nodes, dtype=torch.float64)
            f = r - (w * torch.polar(torch.ones_like(r), arm * math.pi + 0.25 * r.exp())).real
            b, j = (f[:, 1:].sign() != f[:, :-1].sign()).nonzero(as_tuple=True)
            low, high = r[j], r[j + 1]
            for _ in range(40):
                middle = (low + high) / 2
                turned = w[b, 0] * torch.polar(
                    torch.ones_like(middle), arm * math.pi + 0.25 * middle.exp()
                )
                same = (middle - turned.real).sign() == f[b, j].sign()
                low, high = torch.where(same, middle, low), torch.where(same, high, middle)
            root, t = middle, turned.imag
            weight = torch.exp(-((root - 1) ** 2) / 0.18 - t**2 / 0.02) / (2 * math.pi * 0.03) / 4
            if jacobian:
                weight = weight / (1 + 0.25 * root.exp() * t).abs()
            total.index_add_(0, b, weight / 2)
        density.append(total)
    return torch.cat(density).log()


def excess(
    log_prob: LogProb, z: Tensor, cells: int = 36, half: float = 4.5, inner: int = 3
) -> float:
    """Pearson's chi-square of cell counts against the density, as a standard score."""
    fine = log_prob(lattice(cells * inner, half)).exp() * (2 * half / (cells * inner)) ** 2
    mass = fine.reshape(cells, inner, cells, inner).sum((1, 3)).flatten()
    index = ((z + half) / (2 * half) * cells).floor().long()
    inside = ((index >= 0) & (index < cells)).all(1)
    index = index[inside]
    counts = torch.bincount(index[:, 0] * cells + index[:, 1], minlength=cells**2).double()
    expected = mass * len(z)
    big = expected > 5
    observed = torch.cat([counts[big], (len(z) - counts[big].sum())[None]])
    wanted = torch.cat([expected[big], expected[~big].sum().clamp(min=5)[None]])
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(observed) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


def mass_of(log_prob: LogProb) -> float:
    z = lattice(240, 7.2)
    return float(log_prob(z).exp().sum() * (14.4 / 240) ** 2)


def test_the_density_integrates_to_one_and_half_of_it_does_not() -> None:
    assert mass_of(Pinwheel().log_prob) == pytest.approx(1, abs=1e-6)
    assert mass_of(lambda z: slow_log_prob(z, arms=(0,), nodes=151)) == pytest.approx(0.5, abs=1e-2)


@pytest.mark.parametrize(
    "pinwheel", [Pinwheel(arms=1), Pinwheel(arms=5), Pinwheel(rate=0.1, scale=1.0, radial_mean=2.0)]
)
def test_other_pinwheels_integrate_to_one(pinwheel: Pinwheel) -> None:
    half = pinwheel.exact_radius
    z = lattice(240, half)
    mass = pinwheel.log_prob(z).exp().sum() * (2 * half / 240) ** 2
    assert float(mass) == pytest.approx(1, abs=1e-5)


def test_samples_follow_the_density_and_the_check_has_power() -> None:
    z = Pinwheel().sample(60_000, seeded(1), torch.float64)
    assert excess(Pinwheel().log_prob, z) < 4
    assert excess(lambda y: slow_log_prob(y, nodes=401), z) < 4
    assert excess(lambda y: slow_log_prob(y, jacobian=False, nodes=401), z) > 8
    assert excess(lambda y: slow_log_prob(y, arms=(0,), nodes=401), z) > 8


@pytest.mark.parametrize("radius", [0.5, 2.0, 4.0, 6.0])
def test_no_pre_image_is_missed(radius: float) -> None:
    z = torch.randn(600, 2, generator=seeded(2), dtype=torch.float64)
    z = radius * z / z.norm(dim=1, keepdim=True)
    difference = (Pinwheel().log_prob(z) - slow_log_prob(z, nodes=6001)).abs()
    # Only within the floored strip at the folds may the two differ; the strip is thin.
    assert float((difference > 1e-6).double().mean()) < 0.03
    assert float(difference.quantile(0.95)) < 1e-9


def test_where_the_mass_is_the_value_is_exact() -> None:
    z = Pinwheel().sample(2000, seeded(3), torch.float64)
    exact = slow_log_prob(z, nodes=6001)
    torch.testing.assert_close(Pinwheel().log_prob(z), exact, rtol=0, atol=1e-7)
    single = Pinwheel().log_prob(z.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=2e-3)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_gradient_matches_finite_differences(spread: float) -> None:
    pinwheel, h = Pinwheel(), 1e-6
    z = pinwheel.sample(2000, seeded(4), torch.float64)
    z = z + spread * torch.randn(z.shape, generator=seeded(5), dtype=torch.float64)
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(pinwheel.log_prob(z).sum(), z)
    z = z.detach()
    numeric = torch.stack(
        [
            (pinwheel.log_prob(z + h * e) - pinwheel.log_prob(z - h * e)) / (2 * h)
            for e in torch.eye(2, dtype=torch.float64)
        ],
        dim=1,
    )
    error = (gradient - numeric).norm(dim=1) / (1 + numeric.norm(dim=1))
    # Off the arms a few points lie on the floored strip at a fold, where the two differ by design.
    assert float((error > 1e-5).double().mean()) < (0.03 if spread else 1e-3)


def test_upstream_gradients_are_multiplied_in_and_second_derivatives_are_refused() -> None:
    z = Pinwheel().sample(5, seeded(), torch.float64).requires_grad_()
    scale = torch.arange(5, dtype=torch.float64)
    (one,) = torch.autograd.grad(Pinwheel().log_prob(z).sum(), z, create_graph=True)
    (scaled,) = torch.autograd.grad((scale * Pinwheel().log_prob(z)).sum(), z)
    torch.testing.assert_close(scaled, scale[:, None] * one.detach())
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        torch.autograd.grad((one + z**3).sum(), z)


@settings(max_examples=40, deadline=None)
@given(
    radius=st.floats(0, 49),
    angle=st.floats(-math.pi, math.pi),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_value_and_gradient_are_finite_everywhere(
    radius: float, angle: float, dtype: torch.dtype
) -> None:
    z = torch.tensor([[radius * math.cos(angle), radius * math.sin(angle)]], dtype=dtype)
    z.requires_grad_()
    value = Pinwheel().log_prob(z)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert value.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_dense_cover_of_the_plane_is_finite_with_bounded_gradients(dtype: torch.dtype) -> None:
    z = torch.cat([lattice(150, 7.0), lattice(60, 35.0), torch.zeros(1, 2)]).to(dtype)
    z.requires_grad_()
    value = Pinwheel().log_prob(z)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    assert value.isfinite().all()
    assert float(gradient.norm(dim=1).max()) < 5000


def test_far_away_the_gradient_points_home_and_matches_the_value() -> None:
    pinwheel, h = Pinwheel(), 1e-5
    radius = torch.tensor([8.0, 15.0, 45.0], dtype=torch.float64)
    z = torch.stack([radius, torch.zeros(3, dtype=torch.float64)], dim=1).requires_grad_()
    (gradient,) = torch.autograd.grad(pinwheel.log_prob(z).sum(), z)
    step = torch.tensor([h, 0.0], dtype=torch.float64)
    z = z.detach()
    numeric = (pinwheel.log_prob(z + step) - pinwheel.log_prob(z - step)) / (2 * h)
    torch.testing.assert_close(gradient[:, 0], numeric, rtol=1e-6, atol=1e-6)
    assert (gradient[:, 0] < 0).all()


def test_the_far_value_is_the_mean_over_the_angle() -> None:
    radius = torch.tensor(3.5, dtype=torch.float64)
    psi = torch.linspace(-math.pi, math.pi, 20_001, dtype=torch.float64)[:-1]
    r, t = radius * psi.cos(), radius * psi.sin()
    density = torch.exp(-((r - 1) ** 2) / 0.18 - t**2 / 0.02) / (2 * math.pi * 0.03)
    mean = (density.mean() / 4).log()
    far = Pinwheel().log_prob(torch.stack([2 * radius, 0 * radius])[None])
    assert float(far) == pytest.approx(float(mean), abs=0.01)


def test_sampling_repeats_from_a_seed() -> None:
    pinwheel = Pinwheel()
    assert torch.equal(pinwheel.sample(9, seeded(7)), pinwheel.sample(9, seeded(7)))
    assert not torch.equal(pinwheel.sample(9, seeded(7)), pinwheel.sample(9, seeded(8)))


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(4, 3), torch.zeros(4, 2).long()])
def test_bad_points_are_refused(bad: Tensor) -> None:
    with pytest.raises(BadInput, match="z must be floats of shape"):
        Pinwheel().log_prob(bad)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(BadInput, match="arms must be at least 1"):
        Pinwheel(arms=0)
    with pytest.raises(BadInput, match="tangential_sd must be at most radial_sd"):
        Pinwheel(tangential_sd=0.5)
    with pytest.raises(BadInput, match="n must be at least 1, got 0"):
        Pinwheel().sample(0)
