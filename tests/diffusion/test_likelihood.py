"""The density of the flow against closed forms, and that a learned one integrates to 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from damc import Amortizer, BadInput, Diverged
from damc.diffusion.likelihood import EXACT, AncestralPaths, flow_log_prob
from damc.diffusion.schedule import TruncatedCosine

SCHEDULE = TruncatedCosine()
ENDS = (SCHEDULE.b, SCHEDULE.a + SCHEDULE.b)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class GaussianDenoiser:
    """E[eps | z] of data N(m, C) at every noise level, in float64."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        self.mean, self.covariance = mean, covariance

    def __call__(self, z: Tensor, angle: Tensor) -> Tensor:
        noisy = self.at(angle)
        return angle.sin() * torch.linalg.solve(noisy, (z - angle.cos() * self.mean).mT).mT

    def at(self, angle: Tensor) -> Tensor:
        eye = torch.eye(len(self.mean), dtype=self.mean.dtype)
        return angle.cos() ** 2 * self.covariance + angle.sin() ** 2 * eye


def gaussian(d: int) -> GaussianDenoiser:
    a = torch.randn(d, d, generator=seeded(), dtype=torch.float64)
    return GaussianDenoiser(torch.linspace(-1, 1, d).double(), a @ a.mT / d + 0.1 * torch.eye(d))


def exact(denoiser: GaussianDenoiser, z: Tensor) -> Tensor:
    """log q of the flow that ends at N(0, I): it maps Gaussians to Gaussians by one linear map.

    The flow transports N(m_1, C_1) at the noisy end to N(m_0, C_0) at the clean one by
    z_0 = m_0 + C_0^(1/2) C_1^(-1/2) (z_1 - m_1), as all covariances have the same eigenvectors.
    """
    first, last = (torch.tensor(angle, dtype=torch.float64) for angle in ENDS)
    c0, c1 = denoiser.at(first), denoiser.at(last)
    values, vectors = torch.linalg.eigh(c0)
    others = (vectors.mT @ c1 @ vectors).diagonal()
    scale = vectors @ torch.diag((values / others).sqrt()) @ vectors.mT
    mean = first.cos() * denoiser.mean - scale @ (last.cos() * denoiser.mean)
    return MultivariateNormal(mean, scale @ scale.mT).log_prob(z)  # type: ignore[no-untyped-call, no-any-return]


@pytest.mark.parametrize("d", [1, 3, 10])
def test_of_a_gaussian_it_is_the_closed_form(d: int) -> None:
    denoiser = gaussian(d)
    z = 2 * torch.randn(20, d, generator=seeded(1), dtype=torch.float64)
    found = flow_log_prob(denoiser, z, ENDS, tolerance=1e-6)
    torch.testing.assert_close(found, exact(denoiser, z), atol=1e-5, rtol=0)


def test_a_wrong_divergence_would_be_seen() -> None:
    class Halved(GaussianDenoiser):
        def __call__(self, z: Tensor, angle: Tensor) -> Tensor:
            return super().__call__(z.detach() / 2 + z / 2, angle) * 0.99

    right = gaussian(3)
    z = torch.randn(20, 3, generator=seeded(1), dtype=torch.float64)
    wrong = flow_log_prob(Halved(right.mean, right.covariance), z, ENDS, tolerance=1e-6)
    assert float((wrong - exact(right, z)).abs().max()) > 1e-2


def test_beyond_64_dimensions_the_estimate_is_unbiased() -> None:
    denoiser = gaussian(EXACT + 6)
    z = torch.randn(1, EXACT + 6, generator=seeded(1), dtype=torch.float64)
    found = torch.cat(
        [
            flow_log_prob(denoiser, z, ENDS, probes=16, tolerance=0.05, generator=seeded(k))
            for k in range(12)
        ]
    )
    error = float(found.std()) / 12**0.5
    assert 0 < error < 2
    assert abs(float(found.mean() - exact(denoiser, z)[0])) < 4 * error


def test_too_few_steps_are_not_passed_off_as_a_density() -> None:
    denoiser = gaussian(3)
    z = torch.randn(4, 3, generator=seeded(1), dtype=torch.float64)
    with pytest.raises(Diverged, match="nats between 8 and 16 steps"):
        flow_log_prob(denoiser, z, ENDS, tolerance=1e-12, steps=8, most=16)


def learned(standardize: bool) -> Amortizer:
    """q(z | x) of two heaps around 30 and 34, by their sign x, and q(z) of both."""
    torch.manual_seed(0)
    q = Amortizer(1, 1, embedding=16, widths=(32, 32, 32), standardize=standardize).double()
    generator = seeded()
    x = torch.randn(2000, 1, generator=generator, dtype=torch.float64).sign()
    z = 2 * x + 0.7 * torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    z = z + 32 if standardize else z
    if q.standardize is not None:
        q.standardize.fit(z)
    optimizer = torch.optim.Adam(q.parameters(), 3e-3)
    for _ in range(200):
        part = torch.randint(2000, (256,), generator=generator)
        optimizer.zero_grad()
        q.loss(z[part], x[part], generator=generator).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return q


@pytest.mark.parametrize("standardize", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_learned_density_integrates_to_one_and_is_that_of_its_samples(standardize: bool) -> None:
    q = learned(standardize)
    middle = 32.0 if standardize else 0.0
    grid = torch.linspace(middle - 8, middle + 8, 161, dtype=torch.float64)[:, None]
    samples = q.sample(4000, solver="multistep", steps=60, generator=seeded(2))
    for x in (None, 1.0):
        context = None if x is None else torch.full_like(grid, x)
        density = q.log_prob(grid, context).exp()
        assert float(density.sum() * 0.1) == pytest.approx(1, abs=0.01)
        if x is None:
            upper = float(density[grid[:, 0] > middle].sum() * 0.1)
            share = float((samples > middle).double().mean())
            assert share == pytest.approx(upper, abs=4 * 0.5 / math.sqrt(4000))
            mean = float((density * grid[:, 0]).sum() / density.sum())
            assert float(samples.mean()) == pytest.approx(mean, abs=4 * 2.2 / math.sqrt(4000))
        else:
            assert float(density[grid[:, 0] > middle].sum() * 0.1) > 0.9


def test_a_standardized_amortizer_comes_back_from_disk(tmp_path) -> None:  # type: ignore[no-untyped-def]
    q = Amortizer(2, embedding=8, widths=(8, 8, 8), standardize=True)
    assert q.standardize is not None
    q.standardize.fit(torch.randn(50, 2, generator=seeded()) * 5 + 40)
    q.save(tmp_path / "q")
    again = Amortizer.load(tmp_path / "q")
    drawn = [one.sample(5, steps=3, generator=seeded(1)) for one in (q, again)]
    assert drawn[0].equal(drawn[1]) and float(drawn[0].mean()) > 20


def test_bad_input_is_one_clear_sentence() -> None:
    q = Amortizer(2, embedding=8, widths=(8, 8, 8), null="noise")
    with pytest.raises(BadInput, match="null must be 'token'"):
        q.log_prob(torch.zeros(3, 2))
    with pytest.raises(BadInput, match=r"z must have shape \(B, 2\)"):
        q.log_prob(torch.zeros(3, 4))
    assert isinstance(q.null, nn.Module)


def diagonal(sds: list[float]) -> tuple[GaussianDenoiser, Tensor]:
    scale = torch.tensor(sds, dtype=torch.float64)
    draws = torch.randn(4000, len(sds), generator=seeded(1), dtype=torch.float64) * scale
    return GaussianDenoiser(torch.zeros_like(scale), torch.diag(scale.square())), draws


def log_normal(z: Tensor, sds: list[float]) -> Tensor:
    scale = torch.tensor(sds, dtype=torch.float64)
    return MultivariateNormal(torch.zeros_like(scale), torch.diag(scale.square())).log_prob(z)  # type: ignore[no-untyped-call, no-any-return]


def test_paths_of_an_exact_denoiser_have_equal_weights() -> None:
    """Of N(0, I) noising and denoising are the same process, whatever the number of steps."""
    denoiser, draws = diagonal([1.0, 1.0, 1.0])
    for steps in (5, 50):
        paths = AncestralPaths.fit(denoiser, draws, ENDS, steps)
        z, ratio = paths.draw(1000, seeded(2))
        down = log_normal(z, [1.0] * 3) + ratio
        up = log_normal(draws[:1000], [1.0] * 3) + paths.noised(draws[:1000], seeded(3))
        assert down.std() < 0.2 and up.std() < 0.2  # the variances are estimated
        assert down.mean().abs() < 0.02 and up.mean().abs() < 0.02


def test_weights_of_paths_correct_any_target_and_bound_its_evidence() -> None:
    denoiser, draws = diagonal([1.0, 0.5])
    paths = AncestralPaths.fit(denoiser, draws, ENDS, 30)
    sds = [0.8, 0.5]  # not what the denoiser draws
    z, ratio = paths.draw(40_000, seeded(4))
    log_w = log_normal(z, sds) + ratio
    w = log_w.exp()
    assert abs(float(w.mean()) - 1) < 4 * float(w.std()) / 200
    variance = (w * z[:, 0].square()).mean() / w.mean()
    assert abs(float(variance) / 0.64 - 1) < 0.05 and abs(float(z[:, 0].var()) - 1) < 0.05
    exact = torch.randn(4000, 2, generator=seeded(5), dtype=torch.float64) * torch.tensor(sds)
    above = log_normal(exact, sds) + paths.noised(exact, seeded(6))
    divergence = math.log(1 / 0.8) + 0.32 - 0.5  # KL of target and draws
    assert float(log_w.mean()) < -0.02 < 0 < float(above.mean())
    assert abs(float(above.mean()) - divergence) < 0.02
