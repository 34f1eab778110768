"""Algorithm 1: what it draws, what it updates, and what each option changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from damc import DAMC, BadInput, Diverged, LatentModel
from damc.learn import LEARNERS
from damc.learn.damc import DAMCSettings, PaperDAMC
from damc.learn.optimizers import LearningRate
from damc.learn.parts import decoder_step, energy_step
from damc.learn.presets import find_preset
from damc.learn.sharing import count
from damc.learn.starts import Store
from tests.learn.tiny import INDEX, QUICK, WARM, X, changed, make, seeded, weights
from tests.reference.energies import Zero


def test_no_forward_pass_is_wasted() -> None:
    learner = make(replace(QUICK, p_uncond=0.5))
    learner.step(X, INDEX, seeded())
    model, q = learner.model, learner.amortizer
    assert model.decoder.rows == [6] * (3 + 1)  # T moves and one update
    # T moves of the posterior, T' moves on twice the batch, then positives and negatives once.
    assert model.prior.energy.rows == [6] * 3 + [12] * 4 + [6, 12]  # type: ignore[union-attr]
    assert q.encoder.rows == [3, 3]  # type: ignore[union-attr]
    assert learner.target.encoder.rows == [6]  # type: ignore[union-attr]


def test_one_iteration_updates_every_network_and_moves_the_copy() -> None:
    learner = make()
    parts = (learner.model.decoder, learner.model.prior, learner.amortizer, learner.target)
    before = [weights(part) for part in parts]
    metrics = learner.check(learner.step(X, INDEX, seeded()))
    assert all(changed(old, part) for old, part in zip(before, parts, strict=True))
    assert learner.iteration == 1
    assert {"mse", "energy_difference", "amortizer_loss", "displacement"} <= set(metrics)
    for old, slow, fast in zip(
        before[3], learner.target.parameters(), learner.amortizer.parameters(), strict=True
    ):
        torch.testing.assert_close(slow.detach(), (old + fast.detach()) / 2)


def test_the_copy_waits_for_its_turn() -> None:
    learner = make(replace(QUICK, ema_every=2))
    before = weights(learner.target)
    learner.step(X, INDEX, seeded())
    assert not changed(before, learner.target)
    learner.step(X, INDEX, seeded())
    assert changed(before, learner.target)


def test_the_energy_falls_on_positives_and_rises_on_negatives() -> None:
    learner = make(replace(QUICK, energy_rate=1e-2))
    energy = learner.model.prior.energy
    assert energy is not None
    for k in range(3):
        metrics = learner.step(X, INDEX, seeded(k))
        positive, negative = energy.seen[-2:]  # type: ignore[union-attr, index]
        with torch.no_grad():
            after = energy(positive).mean() - energy(negative).mean()
        assert float(after) < float(metrics["energy_difference"])


def test_without_an_energy_it_is_damc_with_a_gaussian_prior() -> None:
    learner = make(energy=False)
    metrics = learner.step(X, INDEX, seeded())
    assert "energy_difference" not in metrics and set(learner.optimizers) == {
        "decoder",
        "amortizer",
    }


def test_an_energy_of_zero_gives_the_gaussian_prior_bit_for_bit() -> None:
    ends = []
    for energy in (None, Zero()):
        learner = make(energy=False)
        model = LatentModel(learner.model.decoder, energy, 3, QUICK.sigma)
        learner = DAMC(model, learner.amortizer, QUICK)
        for _ in range(2):
            learner.step(X, INDEX, seeded())
        ends.append(weights(learner.amortizer))
    assert all(a.equal(b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"prior_starts": "unconditional"},
        {"noise_negatives": False},
        {"energy_penalty": 1.0},
        {"prior_step_size": 0.1},
        {"p_uncond": 0.0},
        {"unconditional": "both"},
        {"start_solver": "multistep"},
        {"updates": 1},
        {"decay": "cosine", "horizon": 1},
        {"beta1": 0.9},
        {"amortizer_weight_decay": 0.5},
        {"clip": 1e-3},
        {"ema_rate": 0.9},
        {"sigma": 0.1},
    ],
)
def test_no_option_does_nothing(change: dict[str, Any]) -> None:
    def end(settings: DAMCSettings) -> dict[str, Tensor]:
        learner = make(settings)
        for _ in range(3):
            learner.step(X, INDEX, seeded())
        return learner.state_dict()

    usual, other = end(QUICK), end(replace(QUICK, **change))
    assert any(not usual[name].equal(other[name]) for name in usual)


def test_the_penalty_keeps_the_energy_from_drifting() -> None:
    means = []
    for penalty in (0.0, 10.0):
        learner = make(replace(QUICK, energy_penalty=penalty, energy_rate=1e-2))
        for k in range(150):
            metrics = learner.step(X, INDEX, seeded(k))
        means.append(abs(float(metrics["energy_positive"])))
    assert means[1] < 3 and means[0] > 100


def test_stopping_and_resuming_is_going_on() -> None:
    straight, first = make(), make()
    for k in range(4):
        straight.step(X, INDEX, seeded(k))
    for k in range(2):
        first.step(X, INDEX, seeded(k))
    second = make()
    second.load_state_dict(first.state_dict())
    second.load_resume_state(first.resume_state())
    for k in range(2, 4):
        second.step(X, INDEX, seeded(k))
    for name, tensor in straight.state_dict().items():
        assert tensor.equal(second.state_dict()[name]), name


def test_what_a_trained_learner_gives() -> None:
    learner = make()
    for source in ("amortizer", "energy", "gaussian"):
        assert learner.sample(5, source=source, generator=seeded()).shape == (5, 1, 4, 4)
    assert learner.infer(X, generator=seeded()).shape == (6, 3)
    assert learner.reconstruct(X, generator=seeded()).shape == X.shape
    raw = learner.infer(X, steps=0, generator=seeded())
    assert raw.equal(learner.amortizer.sample(x=X, generator=seeded()))
    refined = learner.infer(X, steps=30, generator=seeded())
    better = learner.model.log_joint(refined, X) > learner.model.log_joint(raw, X)
    assert bool(better.all())
    score = learner.anomaly_score(X, generator=seeded())
    z = learner.infer(X, generator=seeded())
    torch.testing.assert_close(
        score,
        (X - learner.model.decoder(z)).square().sum((1, 2, 3)) / (2 * 0.5**2)
        + learner.model.prior.energy(z)  # type: ignore[misc]
        + z.square().sum(1) / 2,
    )


def test_metrics_that_blow_up_are_named() -> None:
    learner = make()
    with pytest.raises(Diverged, match="mse is nan at iteration 0"):
        learner.check({"loss": torch.tensor(1.0), "mse": torch.tensor(float("nan"))})


def test_rates_fall_as_they_say() -> None:
    paper = LearningRate(2e-4)
    assert paper.at(999) == 2e-4 and paper.at(1000) == pytest.approx(1.98e-4)
    assert paper.at(10**7) == 1e-5
    cosine = LearningRate(1e-3, "cosine", horizon=100, floor=0.0)
    assert [round(cosine.at(k), 9) for k in (0, 50, 100, 500)] == [1e-3, 5e-4, 0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"updates": 0}, "updates must be at least 1"),
        ({"decoder_rate": -1.0}, "decoder_rate must be positive"),
        ({"decay": "linear"}, "decay must be"),
        ({"prior_starts": "data"}, "prior_starts must be"),
        ({"p_uncond": 1.5}, "p_uncond must lie in"),
        ({"unconditional": "none"}, "unconditional must be"),
        ({"start_solver": "euler"}, "start_solver must be 'ancestral' or 'ddim' or 'multistep'"),
        ({"sigma": "wide"}, "sigma must be a number, got 'wide'"),
        ({"updates": 2.5}, "updates must be a whole number, got 2.5"),
        ({"beta1": 1.0}, r"beta1 must lie in \[0, 1\), got 1.0"),
        ({"ema_rate": 0.0}, r"ema_rate must lie in \(0, 1\], got 0.0"),
    ],
)
def test_bad_settings_are_one_clear_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        replace(QUICK, **change)


def test_the_registry_knows_it() -> None:
    assert LEARNERS["damc"] is DAMC and count(make().model.decoder.parameters()) == 64


def test_the_energy_is_drawn_from_with_a_step_of_its_own_if_asked() -> None:
    """On N(0, I) an unadjusted chain with step s has the variance 1 / (1 - s^2 / 4)."""
    for step, variance in ((None, 1 / (1 - 0.04)), (1.6, 1 / (1 - 0.64))):
        learner = DAMC.from_preset("digits-small", prior_step_size=0.4, prior_sample_step_size=step)
        assert learner.model.prior.energy is not None
        for weight in learner.model.prior.energy.parameters():
            weight.data.zero_()
        generator = torch.Generator().manual_seed(0)
        z = learner.sample_latent(2000, "energy", generator=generator)
        assert float(z.var()) == pytest.approx(variance, rel=0.03)
    with pytest.raises(BadInput, match="prior_sample_step_size must be positive"):
        DAMC.from_preset("digits-small", prior_sample_step_size=0.0)


def test_the_decoder_may_learn_longer_from_the_same_samples() -> None:
    def fresh(updates: int) -> DAMC:
        torch.manual_seed(0)
        return DAMC.from_preset("digits-small", decoder_updates=updates)

    generator = torch.Generator().manual_seed(0)
    once, thrice = fresh(1), fresh(3)
    x = torch.rand(8, 1, 8, 8, generator=generator)
    z_pos = torch.randn(8, once.model.latent_dim, generator=generator)
    first, metrics = (
        decoder_step(learner.model, x, z_pos, learner.update, updates=n)
        for learner, n in ((once, 1), (thrice, thrice.settings.decoder_updates))
    )
    assert torch.equal(metrics["mse"], first["mse"])  # that of the samples, before any update
    for _ in range(2):
        once.update("decoder", once.model.squared_error(x, z_pos).mean())
    for one, other in zip(once.parameters(), thrice.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_learner_can_be_pickled() -> None:
    """As scikit-learn's tools do with a detector: neither the EMA nor the chains hold closures."""
    import pickle

    learner = DAMC.from_preset("digits-small").eval()
    again = pickle.loads(pickle.dumps(learner))  # noqa: S301
    x = torch.rand(2, 1, 8, 8) * 2 - 1
    one, two = (
        each.reconstruct(x, generator=torch.Generator().manual_seed(0)) for each in (learner, again)
    )
    assert torch.equal(one, two)
    again.ema.update()


def make_and_step(**changes: Any) -> DAMC:
    learner = make(replace(QUICK, **changes))
    learner.step(X, INDEX, seeded())
    return learner


def test_the_store_holds_the_latest_posterior_samples() -> None:
    learner = make_and_step(store=10, store_updates=3, store_batch=7)
    store = learner.store
    assert store is not None and store.written == 6 and store.points[6:].eq(0).all()
    kept = store.points.clone()
    learner.step(X, INDEX, seeded(2))
    assert store.written == 12 and store.points[2:6].equal(kept[2:6])  # 6 to 9, then 0 and 1
    assert not store.points[:2].equal(kept[:2])
    drawn = {tuple(z.tolist()) for z in store.draw(500, seeded())}
    assert drawn == {tuple(z.tolist()) for z in store.points}


def test_the_energy_learns_from_the_store_too() -> None:
    learner, once = make(replace(QUICK, store=10, store_energy_updates=2)), make_and_step(store=10)
    steps: list[str] = []
    update = learner.update

    def counted(name: str, loss: Tensor) -> Tensor:
        steps.append(name)
        return update(name, loss)

    learner.update = counted  # type: ignore[method-assign]
    learner.step(X, INDEX, seeded())
    assert steps.count("energy") == 3 and steps[-2:] == ["energy", "energy"]
    assert learner.store is not None and once.store is not None
    assert learner.store.points.equal(once.store.points)  # the chains of the batch are as before


def test_what_the_energy_learns_from_the_store_are_its_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def recorded(energy: Any, z_pos: Tensor, z_neg: Tensor, *given: Any, **more: Any) -> Any:
        seen.append((z_pos, z_neg))
        return energy_step(energy, z_pos, z_neg, *given, **more)

    monkeypatch.setattr("damc.learn.damc.energy_step", recorded)
    learner = make_and_step(store=10, store_energy_updates=2)
    assert learner.store is not None and len(seen) == 3
    kept = {tuple(z.tolist()) for z in learner.store.known}
    for z_pos, z_neg in seen[1:]:
        assert {tuple(z.tolist()) for z in z_pos} <= kept and len(z_pos) == len(X)
        assert not kept & {tuple(z.tolist()) for z in z_neg}
    assert not torch.equal(seen[1][1], seen[2][1])  # each has prior chains of its own


def test_energy_updates_from_a_store_need_one() -> None:
    with pytest.raises(BadInput, match="store must be positive for store_energy_updates"):
        make(replace(QUICK, store_energy_updates=2))


def test_a_prior_sampler_leaves_the_rest_of_the_first_iteration_as_it_is() -> None:
    """It learns from posterior samples, and what it draws starts no chain."""
    one, two = make_and_step(), make_and_step(store=10)
    for part in ("model.decoder", "amortizer"):
        pairs = zip(
            one.get_submodule(part).parameters(), two.get_submodule(part).parameters(), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs), part
    assert two.sources == one.sources and two.optimizers.rates.keys() > one.optimizers.rates.keys()


def test_the_prior_sampler_is_what_samples_are_drawn_from() -> None:
    learner = make(replace(QUICK, store=500, horizon=40))
    assert learner.store is not None and learner.prior_sampler is not None
    learner.store.add(torch.randn(500, 3, generator=seeded()) * 0.01 + 7)
    learner.prior_sampler.fit(learner.store)
    z = learner.sample_latent(50, "amortizer", generator=seeded())
    assert (z - 7).abs().max() < 0.1


def test_its_mixture_is_fitted_again_over_the_horizon() -> None:
    learner = make(replace(WARM, store_components=2, horizon=60, warm_up=0.05))
    fits: list[tuple[int, int]] = []
    q = learner.prior_sampler
    assert q is not None

    def fit(store: Store, *, anew: bool) -> None:
        assert anew == (learner.iteration == 3)  # what it was fitted to before is no guide
        fits.append((learner.iteration, len(store.known)))

    q.fit = fit  # type: ignore[method-assign]
    for k in range(60):
        learner.step(X, INDEX, seeded(k))
    # To the codes of the warm-up; then to posterior samples alone.
    assert fits == [(3, 3 * 6), (17, 14 * 6), (31, 100), (45, 100)]


def test_negatives_may_start_at_noise_alone() -> None:
    learner = make_and_step(prior_starts="noise")
    assert learner.model.prior.energy.rows == [6] * 3 + [6] * 4 + [6, 6]  # type: ignore[union-attr]


def test_the_papers_row_differs_by_what_it_says() -> None:
    for name in ("svhn-small", "mnist-5k-small"):
        preset = find_preset(name)
        ours, paper = DAMC.from_preset(preset), PaperDAMC.from_preset(preset)
        for key, value in paper.config["settings"].items():
            expected = preset.recipe.damc.get(key, value)
            assert ours.config["settings"][key] == expected, key
        assert paper.settings.decoder_updates == 1 and paper.store is None
        assert ours.store is not None and ours.settings.decoder_updates > 1
        again = PaperDAMC.from_config(paper.config)
        assert again.config == paper.config
    one, two = DAMC.settings_from(find_preset("svhn").recipe), DAMCSettings(horizon=200_000)
    assert one == two == PaperDAMC.settings_from(find_preset("svhn").recipe)
