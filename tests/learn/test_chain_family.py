"""The MCMC family: its members meet where they should, and find what can be computed by hand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import DAMC, BadInput, Langevin, LatentModel, fit
from damc.data import load_images
from damc.learn import LEARNERS, find_method
from damc.learn.abp import ABP, ABPSettings
from damc.learn.lebm import LEBM, LEBMSettings, PersistentLEBM
from damc.learn.presets import find_preset
from damc.learn.sri import SRI, SRISettings
from damc.learn.starts import NoiseStarts
from damc.train.feed import batches
from tests.reference.energies import Zero

FAMILY = ("lebm", "lebm-persistent", "abp", "sri", "sri-l5", "damc-g", "nalr", "vi-lebm")
ENERGIES = {"lebm", "lebm-persistent", "nalr", "vi-lebm"}
QUICK = {
    "posterior_steps": 4,
    "prior_steps": 4,
    "start_steps": 2,
    "updates": 2,
    "inference_steps": 40,
    "prior_sample_steps": 5,
    "warm_up": 0.0,
}
X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
INDEX = torch.arange(6)


def make(method: str, **changes: Any) -> Any:
    """A learner on the small digits whose chains are short."""
    torch.manual_seed(0)
    known = LEARNERS[method].settings_type.__dataclass_fields__
    quick = {name: value for name, value in QUICK.items() if name in known}
    return find_method(method).from_preset("digits-small", **(quick | changes))


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(p.equal(q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("zero", [True, False])
def test_damc_g_is_damc_with_the_energy_fixed_at_zero(zero: bool) -> None:
    gaussian = make("damc-g")
    assert gaussian.model.prior.energy is None
    energy = Zero() if zero else find_preset("digits-small").networks.build_energy()
    decoder, s = copy.deepcopy(gaussian.model.decoder), gaussian.settings
    with_energy = DAMC(
        LatentModel(decoder, energy, 8, s.sigma), copy.deepcopy(gaussian.amortizer), s
    )
    for k in range(3):
        for learner in (gaussian, with_energy):
            learner.step(X, INDEX, seeded(k))
    parts = [(learner.model.decoder, learner.amortizer) for learner in (gaussian, with_energy)]
    assert all(same(a, b) for a, b in zip(*parts, strict=True)) is zero


@pytest.mark.parametrize(("method", "prior_chains"), [("damc-g", 0), ("damc-paper", 1)])
def test_prior_chains_run_only_where_an_energy_learns_from_them(
    method: str, prior_chains: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make(method, prior_steps=5)
    runs, run = [], Langevin.run

    def counted(self: Langevin, *args: Any, **options: Any) -> Any:
        runs.append(self.steps)
        return run(self, *args, **options)

    monkeypatch.setattr(Langevin, "run", counted)
    learner.step(X, INDEX, seeded())
    assert runs == [4] + [5] * prior_chains


def test_sri_is_abp_with_starts_that_do_not_persist() -> None:
    sri, abp, forgetful = make("sri"), make("abp"), make("abp")
    forgetful.chains["posterior"].starts = NoiseStarts(8)
    for k in range(3):
        for learner in (sri, abp, forgetful):
            learner.step(X, INDEX, seeded(k))
        assert same(sri, forgetful)
        assert same(sri, abp) is (k == 0)  # in the first epoch there is nothing to go on from


def test_lebm_without_an_energy_is_sri() -> None:
    sri = make("sri")
    s = make("lebm").settings
    lebm = LEBM(LatentModel(copy.deepcopy(sri.model.decoder), None, 8, 0.3), s)
    for k in range(3):
        for learner in (sri, lebm):
            learner.step(X, INDEX, seeded(k))
    assert same(sri, lebm) and lebm.sources == ("gaussian",)


def test_persistent_prior_chains_start_as_short_ones_and_then_part() -> None:
    short, persistent = make("lebm"), make("lebm-persistent")
    for k in range(2):
        for learner in (short, persistent):
            learner.step(X, INDEX, seeded(k))
        assert same(short, persistent) is (k == 0)


class Tilt(nn.Module):
    """E(z) = -b.z: the prior is N(b, I), whose short chains are known as well."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(2))

    def forward(self, z: Tensor) -> Tensor:
        return -z @ self.b


@pytest.mark.parametrize("kind", [LEBM, PersistentLEBM])
def test_persistent_chains_find_the_energy_and_short_ones_the_energy_they_can_follow(
    kind: type[LEBM],
) -> None:
    """x = z + 0.1 n. From noise, T moves on N(b, I) end at mean c b, c = 1 - (1 - s^2/2)^T.

    The energy rests where prior and posterior mean agree, c b = (100 x + b) / 101; c = 1 for
    chains that went on for ever.
    """
    mean = torch.tensor([0.4, -0.3])
    x = torch.randn(256, 2, generator=seeded()) + mean
    mean = x.mean(0)
    decoder = nn.Linear(2, 2, bias=False)
    nn.init.eye_(decoder.weight)
    tilt = Tilt()
    settings = LEBMSettings(
        sigma=0.1,
        posterior_steps=8,
        prior_steps=5,
        decoder_rate=1e-12,
        energy_rate=0.05,
        decay="cosine",
        horizon=250,
    )
    learner = kind(LatentModel(decoder, tilt, 2, 0.1), settings)
    generator = seeded(2)
    for _ in range(250):
        learner.step(x, torch.arange(256), generator)
    c = 1 - (1 - 0.4**2 / 2) ** 5 if kind is LEBM else 1.0
    wanted = 100 * mean / (101 * c - 1)
    # The mean of 256 chains has an error of 0.06, of which the falling rate averages most away.
    torch.testing.assert_close(tilt.b.detach(), wanted, atol=0.1, rtol=0.0)


@pytest.mark.parametrize("kind", [ABP, SRI])
def test_warm_starts_reach_the_likelihood_optimum_and_short_chains_do_not(
    kind: type[ABP | SRI],
) -> None:
    """A linear decoder's optimum is probabilistic PCA: W W^T has the data's variance less sigma^2
    (Tipping and Bishop 1999). Chains of 3 moves from noise are far from the posterior."""
    n, sigma = 512, 0.5
    x = torch.randn(n, 1, generator=seeded()) * 2 @ torch.tensor([[0.6, 0.8, 0.0]])
    x = x + 0.5 * torch.randn(n, 3, generator=seeded(2))
    values, vectors = torch.linalg.eigh(x.T @ x / n)
    decoder = nn.Linear(1, 3, bias=False)
    usual: dict[str, Any] = {
        "sigma": sigma,
        "posterior_steps": 3,
        "posterior_step_size": 0.2,
        "decoder_rate": 0.05,
        "decay": "cosine",
        "horizon": 400,
    }
    settings = ABPSettings(**usual) if kind is ABP else SRISettings(**usual)
    learner = kind(LatentModel(decoder, None, 1, sigma), settings)
    generator = seeded(3)
    for _ in range(400):
        learner.step(x, torch.arange(n), generator)
    w = decoder.weight.detach()[:, 0]
    found = float(w.square().sum()) / (float(values[-1]) - sigma**2)
    # Unadjusted moves leave a bias of l s^2 / 4 in the variance, l = 1 + |w|^2 / sigma^2 near 16.
    assert (0.8 < found < 1.1) is (kind is ABP)
    assert kind is SRI or float((w @ vectors[:, -1]).abs() / w.norm()) > 0.995


@pytest.mark.parametrize("method", FAMILY)
def test_better_than_the_mean_image_within_200_iterations(method: str) -> None:
    digits = load_images("digits")
    x = load_images("digits", split="test").batch(torch.arange(200))
    mean = digits.batch(torch.arange(len(digits))).mean(0)
    chains = {} if method == "vi-lebm" else {"posterior_steps": 20}
    learner = make(method, horizon=150, **chains)
    feed = batches(digits, 64, seed=0)
    for k in range(150):
        learner.step(*next(feed), seeded(k))
    error = (x - learner.reconstruct(x, generator=seeded())).square().mean()
    assert float(error) < 0.8 * float((x - mean).square().mean())


@pytest.mark.parametrize("method", FAMILY)
def test_five_and_five_are_ten_bit_for_bit(method: str, tmp_path: Path) -> None:
    images = torch.rand(40, 1, 8, 8, generator=seeded()) * 2 - 1

    def train(name: str, iterations: int) -> Any:
        learner = make(method, horizon=10)
        options: dict[str, Any] = {"batch": 16, "progress": False, "run": tmp_path / name}
        return fit(learner, images, iterations=iterations, **options)

    train("ten", 10)
    train("five", 5)
    train("five", 10)
    for name in ("weights.safetensors", "resume.safetensors"):
        files = [tmp_path / run / "checkpoints/00000010" / name for run in ("ten", "five")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("method", FAMILY)
def test_what_a_trained_learner_gives(method: str) -> None:
    learner = make(method, horizon=4)
    for k in range(4):
        metrics = learner.check(learner.step(X, INDEX, seeded(k)))
    assert ("energy" in learner.sources) is (method in ENERGIES)
    assert ("amortizer" in learner.sources) is (method in ("damc-g", "nalr"))
    assert "mse" in metrics or method == "nalr"
    for source in (None, *learner.sources):
        images = learner.sample(5, source=source, generator=seeded())
        assert images.shape == (5, 1, 8, 8) and bool(torch.isfinite(images).all())
    first = learner.sample(5, source=learner.sources[0], generator=seeded())
    assert learner.sample(5, generator=seeded()).equal(first)
    z = learner.infer(X, generator=seeded())
    assert z.shape == (6, learner.model.latent_dim)
    assert learner.reconstruct(X, generator=seeded()).shape == X.shape
    energy = learner.model.prior.energy
    with torch.no_grad():
        error = (X - learner.model.decoder(z)).square().sum((1, 2, 3))
        score = error / (2 * 0.3**2) + z.square().sum(1) / 2
        score = score if energy is None else score + energy(z)
    torch.testing.assert_close(learner.anomaly_score(X, generator=seeded()), score)


@pytest.mark.parametrize("method", ["abp", "damc-g"])
def test_inference_ascends_from_noise_too(method: str) -> None:
    learner = make(method)
    options = {"source": "gaussian"} if method == "damc-g" else {}
    z0 = learner.infer(X, steps=0, generator=seeded(), **options)
    assert z0.equal(NoiseStarts(8).draw(X, INDEX, seeded()))
    z = learner.infer(X, generator=seeded(), **options)
    assert z.equal(learner.infer(X, steps=40, generator=seeded(), **options))
    assert bool((learner.model.log_joint(z, X) > learner.model.log_joint(z0, X)).all())


@pytest.mark.parametrize("kind", [ABP, SRI, LEBM])
def test_no_forward_pass_is_wasted(kind: type[ABP | SRI | LEBM]) -> None:
    rows: dict[str, list[int]] = {"decoder": [], "energy": []}

    class Counted(nn.Linear):
        def forward(self, z: Tensor) -> Tensor:
            rows["decoder" if self.out_features > 1 else "energy"].append(len(z))
            return super().forward(z).squeeze(1)

    energy = Counted(2, 1) if kind is LEBM else None
    model = LatentModel(Counted(2, 3), energy, 2, 0.5)
    chains = {"prior_steps": 7} if kind is LEBM else {}
    learner = kind(model, kind.settings_type(sigma=0.5, posterior_steps=4, **chains))
    learner.step(torch.zeros(5, 3), torch.arange(5), seeded())
    assert rows["decoder"] == [5] * (4 + 1)  # T moves and one update
    assert len(rows["energy"]) == (4 + 7 + 2 if kind is LEBM else 0)


def test_sources_and_settings_that_are_not_there_are_one_clear_sentence() -> None:
    with pytest.raises(BadInput, match="source of abp must be gaussian, got 'energy'"):
        make("abp").sample(2, source="energy")
    with pytest.raises(BadInput, match="source of inference must be amortizer or gaussian"):
        make("damc-g").infer(X, source="energy")
    with pytest.raises(BadInput, match="inference_steps must be at least 1"):
        make("lebm", inference_steps=0)
    with pytest.raises(BadInput, match="prior_steps"):
        make("abp", prior_steps=3)
