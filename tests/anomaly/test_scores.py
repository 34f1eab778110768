"""Scores against formulas of their own, and what calibration is for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from damc.anomaly.scores import Calibration, error_and_detail, misfit, score
from damc.errors import BadInput
from damc.learn import DAMC, Learner


class Blur(Learner):
    """Reconstructs an image as half of itself: errors grow with what is in it."""

    name = "blur"
    inference = "encoder"

    def reconstruct(self, x: Tensor, **options: Any) -> Tensor:
        return x / 2


def _of_detail(n: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Errors e = 2 c^1.5 exp(noise N(0, 1)) and details c, ``(n,)``."""
    g = torch.Generator().manual_seed(seed)
    detail = torch.rand(n, generator=g, dtype=torch.float64) * 50 + 1
    standard = torch.randn(n, generator=g, dtype=torch.float64)
    return 2 * detail**1.5 * (noise * standard).exp(), detail


def test_the_calibrated_score_is_the_larger_of_two_standardized_ones_smoothed() -> None:
    error, detail = _of_detail(4000, 0.5)
    found = Calibration.of(error, detail)
    e, c = error.log(), detail.log()
    line = torch.stack([torch.ones_like(c), c], 1)
    residual = e - line @ torch.linalg.lstsq(line, e[:, None]).solution[:, 0]
    u, v = (e - e.mean()) / e.std(correction=0), residual / residual.std(correction=0)
    scored = replace(found, most=1e9).score_errors(error, detail)
    assert torch.allclose(scored, (u.exp() + v.exp()).log(), atol=2e-3)
    either = torch.maximum(u, v)
    assert bool((scored >= either).all()) and bool((scored <= either + math.log(2) + 1e-9).all())
    assert float((scored - u).abs().max()) > 1 and float((scored - v).abs().max()) > 1


def test_more_detail_than_normal_images_have_is_no_excuse() -> None:
    detail = torch.linspace(1, 2, 200)
    found = Calibration.of(detail**4, detail)
    assert 3.5 < found.slope < 4
    assert found.most == pytest.approx(1.99, abs=0.01)
    error, busy = torch.tensor([9.0, 9.0, 9.0]), torch.tensor([1.5, 2.0, 8.0])
    scored = found.score_errors(error, busy)
    assert float(scored[0]) > float(scored[1]) == float(scored[2])


def test_calibration_of_equal_details_or_errors_only_centres() -> None:
    error = torch.tensor([1.0, 2.0, 4.0])
    found = Calibration.of(error, torch.full((3,), 5.0))
    assert found.slope == pytest.approx(1.0)  # nothing was learned of it
    assert found.mean == pytest.approx(math.log(2))
    assert found.offset == pytest.approx(math.log(2) - math.log(5))
    assert found.spread == found.residual_spread == pytest.approx(math.log(2) * math.sqrt(2 / 3))
    flat = Calibration.of(torch.full((3,), 2.0), torch.full((3,), 5.0))
    same = flat.score_errors(torch.tensor(2.0), torch.tensor(5.0))
    assert float(same) == pytest.approx(math.log(2), abs=0.2)
    assert float(flat.score_errors(torch.tensor(3.0), torch.tensor(5.0))) > 100


def test_simple_and_busy_anomalies_both_stand_out_only_when_calibrated() -> None:
    """Errors 2.5 times those of normal images with as much detail, at little detail, and 3 times
    the largest details with errors to match: a plain error misses the first, a full correction by
    detail the second."""
    g = torch.Generator().manual_seed(0)
    detail = (0.5 * torch.randn(1000, generator=g, dtype=torch.float64)).exp()
    error = detail * (0.2 * torch.randn(1000, generator=g, dtype=torch.float64)).exp()
    odd_detail = torch.tensor([0.4, 4.0], dtype=torch.float64)
    odd_error = torch.tensor([1.0, 5.0], dtype=torch.float64)
    found = Calibration.of(error, detail)
    simple, busy = found.score_errors(odd_error, odd_detail)
    normal = found.score_errors(error, detail)
    assert float((simple > normal).double().mean()) > 0.98
    assert float((busy > normal).double().mean()) > 0.98
    assert float((odd_error[0] > error).double().mean()) < 0.7
    ratio = error / detail
    assert float((odd_error[1] / odd_detail[1] > ratio).double().mean()) < 0.95


def test_error_and_detail_are_what_they_say() -> None:
    x = torch.zeros(2, 1, 20, 20)
    x[1, 0, 5, 7] = 0.5
    error, detail = error_and_detail(Blur(), x)
    assert float(error[0]) == pytest.approx(1e-6 * 400) and float(detail[0]) == pytest.approx(4e-4)
    assert torch.equal(error[1], misfit(x[1:], x[1:] / 2)[0])
    assert float(detail[1]) == pytest.approx(4 * 0.5**2)  # it differs from four neighbors
    assert torch.allclose(error_and_detail(Blur(), x, samples=3)[0], error)  # a mean, not a sum
    row = torch.tensor([[[[3.0, -4.0]]]])
    error, detail = error_and_detail(Blur(), row)
    assert float(error) == pytest.approx(6.25) and float(detail) == pytest.approx(25.0)


def test_detail_sums_over_channels_and_grows_like_errors_with_contrast() -> None:
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error, detail = error_and_detail(Blur(), x)
    each = [error_and_detail(Blur(), x[:, [i]])[1] for i in range(3)]
    assert torch.allclose(detail, torch.stack(each).sum(0))
    stronger = error_and_detail(Blur(), 3 * x)
    assert torch.allclose(stronger[0], 9 * error) and torch.allclose(stronger[1], 9 * detail)


def test_an_image_moved_a_little_errs_in_proportion_to_its_detail() -> None:
    """Waves of several lengths, reconstructed 0.05 pixels aside: error / detail is the same for
    all, while the errors themselves differ."""
    place = torch.arange(48, dtype=torch.float64)
    waves = [torch.sin(2 * torch.pi * k * place / 48) for k in (2, 3, 4)]
    moved = [torch.sin(2 * torch.pi * k * (place - 0.05) / 48) for k in (2, 3, 4)]
    x, other = (torch.stack(rows)[:, None, None].expand(3, 1, 48, 48) for rows in (waves, moved))

    class Aside(Blur):
        def reconstruct(self, x: Tensor, **options: Any) -> Tensor:
            return other

    error, detail = error_and_detail(Aside(), x)
    assert float(error.max() / error.min()) > 3
    alike = error / detail
    assert torch.allclose(alike, alike.mean().expand(3), rtol=0.1)


def test_a_misfit_is_its_formula() -> None:
    """Written out pixel by pixel: squares of pixels and of 2x2 and 4x4 means, averaged over windows
    of a third of the image that count nothing beyond its edge."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 2, 3, 13, 16, generator=g, dtype=torch.float64)

    def places(d: Tensor, reach: int) -> float:
        squares = d.square().sum(0)
        h, w = squares.shape
        total = 0.0
        for i in range(h):
            for j in range(w):
                window = squares[
                    max(i - reach, 0) : i + reach + 1, max(j - reach, 0) : j + reach + 1
                ]
                total += (float(window.sum()) / (2 * reach + 1) ** 2) ** 2
        return math.sqrt(total)

    for image, other, found in zip(x, y, misfit(x, y), strict=True):
        d = image - other
        wanted = 0.0
        for scale, reach in ((1, 2), (2, 2), (4, 1)):  # a sixth of 13, 12 and 10
            blocks = d.unfold(1, scale, 1).unfold(2, scale, 1).mean((-1, -2))
            wanted += places(blocks, reach)
        assert float(found) == pytest.approx(wanted, rel=1e-9)
    assert misfit(x[..., :3, :3], y[..., :3, :3]).shape == (2,)  # too small for 4x4


def test_errors_in_one_place_count_more_than_as_large_ones_scattered() -> None:
    x = torch.zeros(4, 1, 28, 28)
    x[0, 0, 10:14, 10:14] = 0.5  # a piece
    x[1, 0, 2::7, 2::7] = 0.5  # sixteen pixels apart from each other
    x[2, 0, 8:24, 10], x[2, 0, 8:24, 11] = 0.3, -0.3  # an edge that lies a little aside
    x[3, 0, 8:24, 10:12] = 0.3  # a stroke
    squared = x.square().sum((1, 2, 3))
    assert torch.equal(squared[0], squared[1]) and torch.allclose(squared[2], squared[3])
    piece, scattered, edge, stroke = misfit(x, torch.zeros_like(x)).tolist()
    assert piece > 3 * scattered
    assert stroke > 1.3 * edge
    checked = torch.where((torch.arange(28)[:, None] + torch.arange(28)) % 2 == 0, 0.3, -0.3)
    assert float(misfit(checked[None, None], torch.zeros(1, 1, 28, 28))) > 1  # not canceled


def test_scores_are_the_formulas() -> None:
    torch.manual_seed(0)
    learner = DAMC.from_preset("digits-small", sigma=0.5)
    x = torch.rand(3, 1, 8, 8) * 2 - 1

    def z() -> Tensor:
        return learner.infer(x, generator=torch.Generator().manual_seed(1))

    with torch.no_grad():
        squared = (x - learner.model.decoder(z())).square().flatten(1).sum(1)
        energy = learner.model.prior.energy(z())
        half = z().square().sum(1) / 2
    generator = torch.Generator().manual_seed(1)
    joint = score(learner, x, "joint", generator=generator)
    assert torch.allclose(joint, squared / (2 * 0.25) + energy + half, atol=1e-4)
    generator = torch.Generator().manual_seed(1)
    authors = score(learner, x, "authors", generator=generator)
    assert torch.allclose(authors, squared + energy + half, atol=1e-4)
    generator = torch.Generator().manual_seed(1)
    assert torch.allclose(score(learner, x, "reconstruction", generator=generator), squared)
    several = torch.Generator().manual_seed(1)
    two = score(learner, x, "joint", samples=2, generator=several)
    assert not torch.allclose(two, joint)


def test_bad_scores_are_told() -> None:
    x = torch.zeros(1, 1, 8, 8)
    with pytest.raises(BadInput, match="Calibration"):
        score(Blur(), x, "calibrated")
    with pytest.raises(BadInput, match="one of"):
        score(Blur(), x, "jonit")
    with pytest.raises(BadInput, match="no latent model"):
        score(Blur(), x, "joint")
    with pytest.raises(BadInput, match="at least 1"):
        score(Blur(), x, "own", samples=0)
    with pytest.raises(BadInput, match="at least 3"):
        Calibration.fit(Blur(), x)


def test_an_amortized_learner_is_judged_at_first_sight() -> None:
    """After ten evaluations of the denoiser and one move: ten moves repair what is unusual."""
    torch.manual_seed(0)
    learner = DAMC.from_preset("digits-small").eval()
    x = torch.rand(3, 1, 8, 8) * 2 - 1
    error, _ = error_and_detail(learner, x, generator=torch.Generator().manual_seed(1))
    g = torch.Generator().manual_seed(1)
    z = learner.amortizer.sample(x=x, solver="multistep", steps=10, generator=g)

    @torch.no_grad()
    def after(steps: int) -> Tensor:
        moved = z
        for _ in range(steps):
            slope = torch.func.grad(lambda z: learner.model.log_joint(z, x).sum())(moved)
            moved = moved + learner.settings.posterior_step_size**2 / 2 * slope
        return misfit(x, learner.model.decoder(moved))

    torch.testing.assert_close(error, after(1), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(error, after(0), rtol=1e-3)
    assert not torch.allclose(error, after(10), rtol=1e-3)
