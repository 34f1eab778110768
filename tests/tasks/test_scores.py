"""Scores against formulas of their own, and what calibration is for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from damc.errors import BadInput
from damc.learn import DAMC, Learner
from damc.tasks.scores import Calibration, error_and_detail, score


class Blur(Learner):
    """Reconstructs an image as half of itself: errors grow with what is in it."""

    name = "blur"

    def reconstruct(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return x / 2


def test_calibration_finds_a_power_law() -> None:
    g = torch.Generator().manual_seed(0)
    detail = torch.rand(4000, generator=g) * 50 + 1
    noise = torch.randn(4000, generator=g)
    error = (0.7 + 1.5 * detail.log() + 0.2 * noise).exp()
    found = Calibration.of(error, detail)
    assert found.slope == pytest.approx(1.5, abs=4 * 0.2 / math.sqrt(4000 * 0.8))
    assert found.offset == pytest.approx(0.7, abs=0.06)
    assert found.spread == pytest.approx(0.2, abs=0.01)
    judged = Calibration(found.offset, found.slope, found.spread, 1e9).judge(error, detail)
    assert float((judged - noise).abs().max()) < 0.3
    assert float(judged.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(judged.square().mean()) == pytest.approx(1.0, abs=1e-4)


def test_more_detail_than_normal_images_have_is_no_excuse() -> None:
    detail = torch.linspace(1, 2, 200)
    found = Calibration.of(detail**4, detail)
    assert 3.5 < found.slope < 4
    assert found.most == pytest.approx(1.99, abs=0.01)
    busy = torch.tensor([2.0, 8.0])
    judged = found.judge(busy**2, busy)  # a far smaller error than the power law foretells
    assert float(judged[1]) > float(judged[0])


def test_calibration_of_equal_details_only_centres() -> None:
    error = torch.tensor([1.0, 2.0, 4.0])
    found = Calibration.of(error, torch.full((3,), 5.0))
    assert found.slope == pytest.approx(2.0)  # nothing was learned of it
    assert found.offset == pytest.approx(math.log(2) - 2 * math.log(5))


def test_a_simple_image_with_a_large_error_for_it_stands_out_only_when_calibrated() -> None:
    """Busy normal images have larger errors than a simple anomaly; calibrated, it is the other
    way round. A plain error, the deliberately worse score, ranks them wrongly."""
    g = torch.Generator().manual_seed(0)
    scale = torch.rand(500, generator=g) * 2 + 1
    normal_error, normal_detail = scale**2 * (0.1 * torch.randn(500, generator=g)).exp(), scale
    odd_error, odd_detail = torch.tensor([1.2]), torch.tensor([0.5])
    found = Calibration.of(normal_error, normal_detail)
    normal, odd = found.judge(normal_error, normal_detail), found.judge(odd_error, odd_detail)
    assert float((odd > normal).float().mean()) == 1.0
    assert float((odd_error > normal_error).float().mean()) < 0.3


def test_error_and_detail_are_what_they_say() -> None:
    x = torch.zeros(2, 1, 20, 20)
    x[1, 0, 5, 7] = 1.0
    error, detail = error_and_detail(Blur(), x)
    assert float(error[0]) == pytest.approx(1e-6 * 400) and float(detail[0]) == pytest.approx(4e-4)
    assert float(error[1]) == pytest.approx(9 * (0.5 / 9) ** 2)  # one pixel spread over nine
    assert float(detail[1]) == pytest.approx(4.0)  # it differs from four neighbours
    small = x[:, :, :8, :8]
    assert float(error_and_detail(Blur(), small)[0][1]) == pytest.approx(0.25)  # not smoothed
    row = torch.tensor([[[[3.0, -4.0]]]])
    error, detail = error_and_detail(Blur(), row)
    assert float(error) == pytest.approx(6.25) and float(detail) == pytest.approx(7.0)


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
