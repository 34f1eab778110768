"""The warm-up: an auto-encoder before chains, and codes on the prior's scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import damc.learn.damc
from damc import DAMC, Amortizer, BadInput
from damc.learn.parts import squared_weights
from damc.learn.starts import Store
from tests.learn.tiny import INDEX, WARM, Counted, X, make, seeded, weights

UNCENTERED = {"centered": False, "warm_up": 0.0, "store": 0, "store_energy_updates": 0}


def codes(learner: DAMC) -> Tensor:
    assert learner.amortizer.center is not None
    with torch.no_grad():
        z: Tensor = learner.amortizer.center(learner.amortizer.embed(X))
    return z


def test_it_warms_up_as_an_auto_encoder() -> None:
    learner = make(WARM)
    decoder = learner.model.decoder
    assert isinstance(decoder, Counted)
    z = codes(learner)
    with torch.no_grad():
        error = learner.model.squared_error(X, z).mean() / X[0].numel()
    start = make(WARM)

    def same(part: str) -> list[bool]:
        pairs = zip(*(weights(one.get_submodule(part)) for one in (learner, start)), strict=True)
        return [a.equal(b) for a, b in pairs]

    decoder.rows.clear()
    metrics = learner.step(X, INDEX, seeded())
    torch.testing.assert_close(metrics["mse"], error)
    assert decoder.rows == [6]  # one pass, and no chain
    assert learner.store is not None and learner.store.points[:6].equal(z)
    for part in ("model.decoder", "amortizer.encoder", "amortizer.center"):
        assert not any(same(part)), part
    for _ in range(2):
        learner.step(X, INDEX, seeded())
    for part in ("model.prior", "prior_sampler", "amortizer.denoiser"):
        assert all(same(part)), part
    assert "displacement" not in learner.step(X, INDEX, seeded())
    assert "displacement" in learner.step(X, INDEX, seeded())


def test_the_warm_up_makes_an_update_for_every_few_images() -> None:
    learner = make(replace(WARM, warm_up_batch=2))
    assert isinstance(learner.model.decoder, Counted)
    learner.model.decoder.rows.clear()
    learner.step(X, INDEX, seeded())
    assert learner.model.decoder.rows == [2, 2, 2]


def test_codes_are_drawn_to_the_moments_of_the_prior() -> None:
    """The loss is the error and 2 sigma^2 KL(N(mean, variance) || N(0, I)), up to a constant."""
    learner = make(WARM)
    losses: list[Tensor] = []
    update = learner.update

    def spy(name: str, loss: Tensor) -> Tensor:
        losses.append(loss.detach())
        return update(name, loss)

    learner.update = spy  # type: ignore[method-assign]
    z = codes(learner)
    moments = torch.distributions.Normal(z.mean(0), z.var(0, correction=0).sqrt())
    prior = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    divergence = torch.distributions.kl_divergence(moments, prior).sum()
    error = learner.model.squared_error(X, z).mean().detach()
    learner.step(X, INDEX, seeded())
    constant = 3  # of the divergence, one for each dimension
    expected = error + WARM.sigma**2 * (2 * divergence + constant)
    torch.testing.assert_close(losses[0], expected, rtol=1e-4, atol=0)


def test_a_variational_warm_up_learns_by_the_bound_on_log_p() -> None:
    """The loss is that of the VAE times 2 sigma^2, and codes are draws of N(m(x), diag v(x))."""
    learner = make(replace(WARM, warm_up_variational=True))
    spread, decoder = learner.spread, learner.model.decoder
    assert spread is not None and isinstance(decoder, Counted)
    with torch.no_grad():  # at first all images have the same v
        assert bool((spread(torch.ones(8)) == spread(torch.zeros(8))).all())
        spread.weight.normal_(std=0.3, generator=seeded())
        embedded = learner.amortizer.embed(X)
        m, log_v = codes(learner), spread(nn.functional.leaky_relu(embedded, 0.2))
    losses: list[Tensor] = []
    update = learner.update

    def spy(name: str, loss: Tensor) -> Tensor:
        losses.append(loss.detach())
        return update(name, loss)

    learner.update = spy  # type: ignore[method-assign]
    decoder.seen.clear()
    metrics = learner.step(X, INDEX, seeded())
    z = decoder.seen[0]
    draws = torch.distributions.Normal(m, (log_v / 2).exp())
    prior = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    divergence = torch.distributions.kl_divergence(draws, prior).sum(1).mean()
    error = make(WARM).model.squared_error(X, z).mean().detach()  # before the step
    torch.testing.assert_close(losses[0], error + 2 * WARM.sigma**2 * divergence)
    torch.testing.assert_close(metrics["mse"], error / X[0].numel())
    noise = torch.randn(6, 3, generator=seeded())
    torch.testing.assert_close((z - m) / (log_v / 2).exp(), noise, rtol=1e-4, atol=1e-4)
    assert learner.store is not None and learner.store.points[:6].equal(z)


def test_a_variational_warm_up_learns_how_far_posteriors_spread() -> None:
    """With a linear decoder and one pixel, the optimum is the posterior's variance."""
    learner = make(
        replace(
            WARM,
            warm_up_variational=True,
            warm_up=0.99,
            horizon=2000,
            warm_up_rate=1e-2,
            sigma=0.5,
        ),
        energy=False,
    )
    decoder = learner.model.decoder
    assert isinstance(decoder, Counted) and isinstance(decoder.inner, nn.Sequential)
    decoder.inner[1] = nn.Identity()
    w = torch.zeros(16, 3)
    w[0, 0], w[1, 1] = 1.0, 0.5  # of the third coordinate the images say nothing
    for k in range(800):
        with torch.no_grad():  # the decoder stays as it is
            decoder.inner[0].weight.copy_(w)
        learner.step(X.repeat(10, 1, 1, 1), INDEX.repeat(10), seeded(k))
    assert learner.spread is not None
    with torch.no_grad():
        log_v = learner.spread(nn.functional.leaky_relu(learner.amortizer.embed(X), 0.2))
    expected = 1 / (1 + w.square().sum(0) / 0.25)
    torch.testing.assert_close(log_v.exp().mean(0), expected, rtol=0.1, atol=0)


def test_draws_are_not_spread_again() -> None:
    """What is stored when chains begin are draws already, and codes without a spread are not."""
    for variational in (False, True):
        learner = make(replace(WARM, warm_up_variational=variational))
        for _ in range(4):
            learner.step(X, INDEX, seeded())
        assert learner.store is not None and learner.prior_sampler is not None
        stored = learner.store.points[:24].clone()
        fitted: list[Tensor] = []

        def spy(store: Store, anew: bool, fitted: list[Tensor] = fitted) -> None:
            fitted.append(store.points[:24].clone())

        learner.prior_sampler.fit = spy  # type: ignore[method-assign, assignment]
        learner.step(X, INDEX, seeded())
        assert fitted[0].equal(stored) == variational


def test_a_variational_warm_up_needs_a_warm_up() -> None:
    with pytest.raises(BadInput, match="warm_up must be positive for warm_up_variational, got 0"):
        make(replace(WARM, warm_up=0.0, warm_up_variational=True))
    assert "spread.weight" not in make(WARM).state_dict()


@pytest.mark.parametrize("warm_up", [0.8, 0.0])
def test_the_weights_of_the_decoder_are_penalized_in_both_stages(warm_up: float) -> None:
    """The loss rises by the penalty times the sum of squares of dense weights, nothing else."""
    dense = nn.Linear(3, 16)
    drawing = nn.Sequential(dense, nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 1, 3, padding=1))

    def losses(penalty: float) -> dict[str, Tensor]:
        learner = make(replace(WARM, warm_up=warm_up, decoder_penalty=penalty))
        assert isinstance(learner.model.decoder, Counted)
        learner.model.decoder.inner = drawing
        found: dict[str, Tensor] = {}

        def spy(name: str, loss: Tensor) -> Tensor:
            found.setdefault(name, loss.detach())
            return torch.zeros(())

        learner.update = spy  # type: ignore[method-assign]
        learner.step(X, INDEX, seeded())
        return found

    name = "autoencoder" if warm_up else "decoder"
    without, with_it = losses(0.0), losses(0.5)
    expected = without[name] + 0.5 * dense.weight.detach().square().sum()
    torch.testing.assert_close(with_it[name], expected, rtol=1e-5, atol=0)
    with pytest.raises(BadInput, match="decoder_penalty must not be negative"):
        replace(WARM, decoder_penalty=-0.1)


def test_convolutions_are_penalized_only_where_nothing_is_dense() -> None:
    dense, drawing = nn.Linear(3, 4), nn.ConvTranspose2d(4, 1, 2)
    whole = nn.Sequential(dense, nn.Unflatten(1, (4, 1, 1)), drawing)
    of_dense, of_drawing = dense.weight.square().sum(), drawing.weight.square().sum()
    torch.testing.assert_close(squared_weights(whole, dense=True), of_dense)
    torch.testing.assert_close(squared_weights(whole), of_dense + of_drawing)
    torch.testing.assert_close(squared_weights(drawing, dense=True), of_drawing)


def test_the_first_chains_start_at_the_codes_spread_by_the_factor() -> None:
    learner = make(replace(WARM, ema_rate=1.0))
    for _ in range(4):
        learner.step(X, INDEX, seeded())
    starts: list[Tensor] = []
    draw = learner.posterior_chain.starts.draw

    def spy(x: Tensor, index: Tensor, generator: torch.Generator | None) -> Tensor:
        starts.append(draw(x.repeat(500, 1, 1, 1), index, generator))
        return starts[0][:6]

    learner.posterior_chain.starts.draw = spy  # type: ignore[method-assign]
    z = codes(learner)
    learner.step(X, INDEX, seeded())
    assert learner.amortizer.center is not None
    factor = learner.amortizer.center.factor
    assert learner.posterior_chain.kernel.scale is not None
    assert learner.posterior_chain.kernel.scale.equal(factor)
    away = starts[0] - z.repeat(500, 1)
    standard_error = (factor @ factor.mT).diagonal().sqrt() / 3000**0.5
    assert bool((away.mean(0).abs() < 4 * standard_error).all())
    # v ~ N(0, I) but for the solver's few steps.
    torch.testing.assert_close(away.mT.cov(), factor @ factor.mT, rtol=0.2, atol=0.02)


def test_moves_from_noise_find_the_mode_in_the_coordinates_of_the_center() -> None:
    learner = make(replace(WARM, sigma=0.1, posterior_step_size=0.5), energy=False)
    decoder, center = learner.model.decoder, learner.amortizer.center
    assert isinstance(decoder, Counted) and isinstance(decoder.inner, nn.Sequential)
    decoder.inner[1] = nn.Identity()  # linear, so that the mode of the posterior is known
    w = decoder.inner[0].weight.detach() * torch.tensor([10.0, 1.0, 0.1])
    precision = torch.eye(3) + w.mT @ w / 0.01
    with torch.no_grad():
        decoder.inner[0].weight.copy_(w)
        away = X.flatten(1) - decoder.inner[0].bias
        mode = torch.linalg.solve(precision, w.mT @ away.mT / 0.01).mT
        assert center is not None
        center.factor.copy_(torch.linalg.cholesky(torch.linalg.inv(precision)))
    z = learner.inferences()["gaussian"](X, 200, False, seeded())
    torch.testing.assert_close(z, mode, rtol=1e-3, atol=1e-3)


def test_warming_up_needs_a_center() -> None:
    model = make().model
    settings = replace(WARM, store=0)
    with pytest.raises(BadInput, match="the amortizer must have a center to warm up"):
        DAMC(model, Amortizer(3), settings)


def test_a_center_needs_a_q_of_its_own() -> None:
    with pytest.raises(BadInput, match="store must be positive .* got 0 and 'conditional'"):
        make(replace(WARM, store=0))
    with pytest.raises(BadInput, match="got 100 and 'unconditional'"):
        make(replace(WARM, prior_starts="unconditional"))
    with pytest.raises(BadInput, match="p_uncond must be 0 .* got 0.2 and 'share'"):
        make(replace(WARM, p_uncond=0.2))
    with pytest.raises(BadInput, match="got 0.0 and 'both'"):
        make(replace(WARM, unconditional="both"))


def test_the_last_iteration_has_chains_however_few_there_are() -> None:
    for horizon in (1, 2):
        learner = make(replace(WARM, warm_up=0.9, horizon=horizon))
        for _ in range(horizon):
            metrics = learner.step(X, INDEX, seeded())
        assert "displacement" in metrics


def test_a_linear_start_needs_a_center_and_networks_that_can_be_linear() -> None:
    with pytest.raises(BadInput, match="center for linear_start"):
        DAMC.from_preset("digits-small", linear_start=True, **UNCENTERED)
    with pytest.raises(BadInput, match="linear_start needs"):
        make(replace(WARM, linear_start=True))
    assert DAMC.from_preset("digits-small", linear_start=True).initial_images == 40 * 8
    assert DAMC.from_preset("digits-small", linear_start=False).initial_images == 0


def test_samples_follow_the_codes_before_any_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damc.learn.damc, "EARLY_FITS_FROM", 1)
    learner = make(replace(WARM, warm_up=0.95, horizon=64))
    assert learner.store is not None and learner.prior_sampler is not None
    assert learner.amortizer.center is not None
    fits = []
    for k in range(learner.stages.begin):
        before, known = learner.amortizer.center.factor.clone(), learner.store.known.clone()
        learner.step(X, INDEX, seeded(k))
        if not learner.amortizer.center.factor.equal(before):
            fits.append(k)
            q = learner.prior_sampler.mixture
            torch.testing.assert_close(q.weights @ q.means, known.mean(0), rtol=0, atol=0.01)
    assert fits == [3, 7, 15, 30]
    assert learner.target.center is not None
    assert learner.target.center.factor.equal(learner.amortizer.center.factor)
    assert len(learner.store.known) == min(6 * learner.stages.begin, 100)  # nothing is forgotten
