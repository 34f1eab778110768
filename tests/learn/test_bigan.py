"""BiGAN-sigma: the encoder inverts the decoder, both scores, dropout, resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc import BadInput, fit, load
from damc.data import load_images
from damc.learn import find_method
from damc.learn.bigan import BiGAN, BiGANSettings
from damc.nets.joint import BiNetworks, Joint, drop
from damc.nets.mlp import mlp

QUICK = BiGANSettings(decoder_rate=1e-3, encoder_rate=1e-3, ema_rate=0.05, gradient_penalty=0.01)
TOY = replace(QUICK, decoder_rate=2e-3, encoder_rate=2e-3, gradient_penalty=0.15)
X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def banana(n: int, generator: torch.Generator) -> Tensor:
    """A bent Gaussian, as images of one pixel and two channels."""
    u = torch.randn(n, 2, generator=generator)
    return torch.stack([u[:, 0], 0.5 * u[:, 0].square() + 0.4 * u[:, 1]], 1).view(n, 2, 1, 1)


def toy(critic: type[Joint]) -> BiGAN:
    torch.manual_seed(0)
    decoder = nn.Sequential(*mlp((2, 64, 64, 2)), nn.Unflatten(1, (2, 1, 1)))
    encoder = nn.Sequential(nn.Flatten(), *mlp((2, 64, 64, 2)))
    return BiGAN(BiNetworks(decoder, encoder, critic(nn.Flatten(), 2, 2, (64, 64))), 2, TOY)


def trained(learner: BiGAN, iterations: int) -> BiGAN:
    generator = seeded()
    for _ in range(iterations):
        x = banana(128, generator)
        learner.step(x, torch.arange(len(x)), generator)
    return learner


def unexplained(truth: Tensor, guess: Tensor) -> float:
    """The share of the truth's variance that the guess leaves: 1 for its mean."""
    error = (truth - guess).flatten(1).square().mean()
    return float(error / truth.flatten(1).var(0).mean())


def test_the_encoder_inverts_the_decoder_on_a_toy() -> None:
    learner = trained(toy(Joint), 300)
    x, z = banana(2000, seeded(2)), torch.randn(2000, 2, generator=seeded(3))
    assert unexplained(x, learner.reconstruct(x)) < 0.1
    assert unexplained(z, learner.infer(learner.used.decoder(z))) < 0.15
    # The codes of data are the prior's.
    codes = learner.infer(x)
    assert float(codes.mean(0).abs().max()) < 0.3
    assert float((codes.T.cov() - torch.eye(2)).abs().max()) < 0.4


def test_a_judge_blind_to_the_latent_point_teaches_no_inverse() -> None:
    class Blind(Joint):
        def features(self, x: Tensor, z: Tensor, **options: Any) -> Tensor:
            return super().features(x, 0 * z, **options)

    learner = toy(Blind)
    trained(learner, 300)
    x = banana(2000, seeded(2))
    assert unexplained(x, learner.reconstruct(x)) > 0.5


def test_digits_come_back_better_than_their_mean() -> None:
    images = load_images("digits")
    x = images.batch(torch.arange(len(images)))
    learner = find_method("bigan-sigma").from_preset("digits-small")
    fit(learner, images, iterations=200, progress=False)
    error = float((learner.reconstruct(x) - x).square().mean())
    assert error < 0.8 * float((x - x.mean(0)).square().mean())
    assert learner.sample(5, generator=seeded()).shape == (5, 1, 8, 8)
    assert learner.infer(x).shape == (len(x), 8)


def make(settings: BiGANSettings = QUICK) -> BiGAN:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Unflatten(1, (1, 4, 4)))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    critic = Joint(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), 8, 3, (8, 8))
    return BiGAN(BiNetworks(decoder, encoder, critic), 3, settings)


def test_the_scores_are_those_of_the_paper() -> None:
    learner = make(replace(QUICK, ema_rate=0.5))
    learner.step(X, torch.arange(6), seeded())
    nets = learner.used
    z = nets.encoder(X)
    back = nets.decoder(z)
    error = (X - back).abs().sum((1, 2, 3))
    sure = F.binary_cross_entropy_with_logits(nets.critic(back, z), torch.ones(6), reduction="none")
    torch.testing.assert_close(learner.anomaly_score(X), 0.9 * error + 0.1 * sure)
    learner.settings = replace(learner.settings, score="features", alpha=0.25)
    apart = (nets.critic.features(X, z) - nets.critic.features(back, z)).abs().sum(1)
    torch.testing.assert_close(learner.anomaly_score(X), 0.25 * error + 0.75 * apart)


def test_each_network_goes_down_its_own_loss() -> None:
    # Small steps without penalty: the critic's loss falls by its own update, and each of the other
    # two losses by that of its network.
    learner = make(replace(QUICK, gradient_penalty=0.0, decoder_rate=1e-4, encoder_rate=1e-4))
    start = make(learner.settings).learned
    learner.step(X, torch.arange(6), seeded())
    new = learner.learned
    z = torch.randn(6, 3, generator=seeded())

    @torch.no_grad()
    def losses(critic: Joint, decoder: nn.Module, encoder: nn.Module) -> list[float]:
        data, made = critic(X, encoder(X)), critic(decoder(z), z)
        return [
            float(F.softplus(-data).mean() + F.softplus(made).mean()),
            float(F.softplus(-made).mean()),
            float(F.softplus(data).mean()),
        ]

    before = losses(start.critic, start.decoder, start.encoder)
    criticd = losses(new.critic, start.decoder, start.encoder)
    after = losses(new.critic, new.decoder, new.encoder)
    assert criticd[0] < before[0] and after[1] < criticd[1] and after[2] < criticd[2]


def test_the_copies_follow_slowly() -> None:
    learner = make(replace(QUICK, ema_rate=0.25))
    old = [p.clone() for p in learner.used.parameters()]
    learner.step(X, torch.arange(6), seeded())
    for before, slow, fast in zip(
        old, learner.used.parameters(), learner.learned.parameters(), strict=True
    ):
        torch.testing.assert_close(slow, before.lerp(fast.detach(), 0.25))


@pytest.mark.parametrize("change", [{"dropout": 0.5}, {"gradient_penalty": 5.0}, {"ema_every": 2}])
def test_no_option_does_nothing(change: dict[str, Any]) -> None:
    ends = []
    for settings in (QUICK, replace(QUICK, **change)):
        learner = make(settings)
        for k in range(3):
            learner.step(X, torch.arange(6), seeded(k))
        ends.append(learner.state_dict())
    assert any(not ends[0][name].equal(ends[1][name]) for name in ends[0])


def test_dropout_keeps_the_mean_and_only_its_generator_decides() -> None:
    h = torch.ones(200, 200)
    kept = drop(h, 0.25, seeded())
    assert kept.equal(drop(h, 0.25, seeded())) and drop(h, 0.0, None) is h
    # A kept unit is 4/3, so one entry has the variance 1/3.
    assert abs(float(kept.mean()) - 1) < 5 * (1 / 3) ** 0.5 / 200
    assert float((kept == 0).float().mean()) == pytest.approx(0.25, abs=0.02)


def test_five_and_five_are_ten_bit_for_bit(tmp_path: Path) -> None:
    def fresh() -> Any:
        torch.manual_seed(0)
        return find_method("bigan-sigma").from_preset("digits-small", dropout=0.5)

    images = load_images("digits")
    common: dict[str, Any] = {"batch": 16, "progress": False}
    ten = fit(fresh(), images, iterations=10, run=tmp_path / "ten", **common)
    fit(fresh(), images, iterations=5, run=tmp_path / "five", **common)
    torch.manual_seed(99)
    resumed = fit(fresh(), images, iterations=10, run=tmp_path / "five", **common)
    for name, tensor in ten.state_dict().items():
        assert tensor.equal(resumed.state_dict()[name]), name
    assert load(tmp_path / "five").reconstruct(X.new_zeros(2, 1, 8, 8)).shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": "sigma"}, "score must be 'cross-entropy' or 'features', got 'sigma'"),
        ({"alpha": 1.5}, "alpha must lie in"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"decoder_rate": 0.0}, "decoder_rate must be positive"),
        ({"ema_every": 0}, "ema_every must be at least 1"),
    ],
)
def test_bad_settings_are_one_clear_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        BiGANSettings(**change)
