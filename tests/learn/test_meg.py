"""MEG: its three losses, the energy's shape, the decoder's spread, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput, fit, load
from damc.data import load_images
from damc.learn import find_method
from damc.learn.meg import MEG, MEGSettings, score_norm
from damc.nets.joint import Joint, image_energy
from damc.nets.mlp import mlp

QUICK = MEGSettings(
    score_penalty=0.1, energy_updates=2, decoder_rate=2e-3, energy_rate=2e-3, beta2=0.9
)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ring(n: int, generator: torch.Generator) -> Tensor:
    """Points near the circle of radius 1, as images of one pixel and two channels."""
    angle = 2 * torch.pi * torch.rand(n, generator=generator)
    radius = 1 + 0.05 * torch.randn(n, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).view(n, 2, 1, 1)


def trained(settings: MEGSettings, iterations: int) -> MEG:
    torch.manual_seed(0)
    decoder = nn.Sequential(*mlp((2, 32, 32, 2)), nn.Unflatten(1, (2, 1, 1)))
    energy = image_energy(nn.Sequential(nn.Flatten(), *mlp((2, 32, 32))), 32)
    learner = MEG(decoder, energy, Joint(nn.Flatten(), 2, 2, (64, 64)), 2, settings)
    generator = seeded()
    for _ in range(iterations):
        x = ring(64, generator)
        learner.step(x, torch.arange(len(x)), generator)
    return learner


def test_the_energy_is_lower_on_data_than_off_it() -> None:
    learner = trained(QUICK, 200)
    data = ring(1000, seeded(2))
    on = learner.anomaly_score(data)
    for factor in (0.0, 0.3, 1.7, 2.5):  # the hole in the middle, and outside
        off = learner.anomaly_score(data * factor)
        assert float((off > on).float().mean()) > 0.95, factor
    # The decoder goes where the energy is low, and all around it.
    points = learner.sample(2000, generator=seeded()).flatten(1)
    assert float((points.norm(dim=1) - 1).abs().median()) < 0.25
    quadrants = (points > 0).long() @ torch.tensor([1, 2])
    assert int(torch.bincount(quadrants, minlength=4).min()) > 200


def test_the_information_bound_is_what_keeps_the_decoders_images_apart() -> None:
    # With a fixed energy |x|^2 / 2 and no entropy, every image goes to the one lowest point.
    class Bowl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).square().sum(1) / 2 + 0 * self.unused

    spread = {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        decoder = nn.Sequential(nn.Linear(2, 2), nn.Unflatten(1, (2, 1, 1)))
        statistics = Joint(nn.Flatten(), 2, 2, (32, 32))
        settings = replace(QUICK, information=weight, score_penalty=0.0, decoder_rate=1e-2)
        learner = MEG(decoder, Bowl(), statistics, 2, settings)
        for k in range(150):
            learner.step(torch.zeros(64, 2, 1, 1), torch.arange(64), seeded(k))
        spread[weight] = float(learner.sample(1000, generator=seeded()).flatten(1).var(0).sum())
    assert spread[0.0] < 0.02 * spread[1.0] and spread[1.0] > 0.03


def test_the_score_is_the_energys_gradient_over_channels_and_pixels() -> None:
    weight = torch.randn(3, 4, 4, dtype=torch.float64, generator=seeded())
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64, generator=seeded()).requires_grad_()
    energy = (weight * x.square()).sum((1, 2, 3))
    expected = (2 * weight * x.detach()).square().sum((1, 2, 3)).mean() / 16
    torch.testing.assert_close(score_norm(energy, x).detach(), expected)


def test_a_linear_energy_settles_where_the_penalty_balances_the_difference() -> None:
    # E(x) = w x on one pixel: mean x - mean g = d, so d w + lambda w^2 is least at -d / (2 lambda).
    class Fixed(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.tensor(value))

        def forward(self, z: Tensor) -> Tensor:
            return self.value.expand(len(z), 1, 1, 1)

    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.w * x.flatten(1).sum(1)

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            return self.c.expand(len(x))

    energy = Linear()
    # A decoder that does not move: its rate is as good as nothing.
    settings = MEGSettings(score_penalty=2.0, energy_rate=1e-2, decoder_rate=1e-12)
    learner = MEG(Fixed(-0.2), energy, Blind(), 2, settings)
    x = torch.full((8, 1, 1, 1), 0.6)
    for _ in range(150):
        metrics = learner.step(x, torch.arange(8), seeded())
    assert energy.w.item() == pytest.approx(-0.8 / 4, rel=1e-2)
    assert float(metrics["information_loss"]) == pytest.approx(0.6931, abs=1e-3)  # knows nothing


def test_samples_on_digits_have_the_mean_of_the_data() -> None:
    images = load_images("digits")
    x = images.batch(torch.arange(len(images)))
    learner = find_method("meg").from_preset("digits-small")
    far = float((learner.sample(500, generator=seeded()).mean(0) - x.mean(0)).square().mean())
    fit(learner, images, iterations=60, progress=False)
    samples = learner.sample(500, generator=seeded())
    assert samples.shape == (500, 1, 8, 8)
    near = float((samples.mean(0) - x.mean(0)).square().mean())
    assert near < 0.02 < 0.2 < far
    noise = torch.rand(500, 1, 8, 8, generator=seeded()) * 2 - 1
    assert learner.anomaly_score(x).median() < learner.anomaly_score(noise).median()


def test_five_and_five_are_ten_bit_for_bit(tmp_path: Path) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        return find_method("meg").from_preset("digits-small")

    images = load_images("digits")
    common: dict[str, Any] = {"batch": 16, "progress": False}
    ten = fit(make(), images, iterations=10, run=tmp_path / "ten", **common)
    fit(make(), images, iterations=5, run=tmp_path / "five", **common)
    torch.manual_seed(99)
    resumed = fit(make(), images, iterations=10, run=tmp_path / "five", **common)
    for name, tensor in ten.state_dict().items():
        assert tensor.equal(resumed.state_dict()[name]), name
    assert load(tmp_path / "five").sample(3, generator=seeded()).shape == (3, 1, 8, 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"energy_updates": 0}, "energy_updates must be at least 1"),
        ({"score_penalty": -1.0}, "score_penalty must not be negative"),
        ({"energy_rate": 0.0}, "energy_rate must be positive"),
        ({"decay": "linear"}, "decay must be"),
    ],
)
def test_bad_settings_are_one_clear_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        MEGSettings(**change)
