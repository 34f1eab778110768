"""The warm-up: an auto-encoder before chains, and codes on the prior's scale."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from damc import DAMC, Amortizer, BadInput
from damc.learn.warm_up import CodeHead
from tests.learn.tiny import INDEX, QUICK, Counted, X, make, seeded, weights


def test_it_warms_up_as_an_auto_encoder() -> None:
    learner = make(replace(QUICK, warm_up=0.5, horizon=8, store=100))
    decoder, encoder = learner.model.decoder, learner.amortizer.encoder
    assert isinstance(decoder, Counted) and isinstance(encoder, Counted)
    with torch.no_grad():
        z = learner.head(learner.amortizer.embed(X))
        error = learner.model.squared_error(X, z).mean() / X[0].numel()
    start = make(learner.settings)

    def same(part: str) -> list[bool]:
        pairs = zip(*(weights(one.get_submodule(part)) for one in (learner, start)), strict=True)
        return [a.equal(b) for a, b in pairs]

    decoder.rows.clear()
    metrics = learner.step(X, INDEX, seeded())
    torch.testing.assert_close(metrics["mse"], error)
    assert decoder.rows == [6]  # one pass, and no chain
    for part in ("model.decoder", "amortizer.encoder", "head"):
        assert not any(same(part)), part
    assert all(same("amortizer.denoiser"))  # codes are not worth learning yet
    learner.step(X, INDEX, seeded())
    with torch.no_grad():
        z = learner.head(learner.amortizer.embed(X))
    learner.step(X, INDEX, seeded())
    assert not all(same("amortizer.denoiser"))
    assert learner.store is not None and learner.store.points[:6].equal(z)
    for part in ("model.prior", "prior_sampler"):
        assert all(same(part)), part
    assert "displacement" not in learner.step(X, INDEX, seeded())
    assert "displacement" in learner.step(X, INDEX, seeded())


def test_the_warm_up_makes_an_update_for_every_few_images() -> None:
    learner = make(replace(QUICK, warm_up=0.5, horizon=8, warm_up_batch=2))
    assert isinstance(learner.model.decoder, Counted)
    learner.model.decoder.rows.clear()
    learner.step(X, INDEX, seeded())
    assert learner.model.decoder.rows == [2, 2, 2]


def test_what_it_warms_up_by_is_the_likeliest_code() -> None:
    learner = make(replace(QUICK, warm_up=0.5, horizon=4))
    losses: list[Tensor] = []
    update = learner.update

    def spy(name: str, loss: Tensor) -> Tensor:
        if name == "autoencoder":
            losses.append(loss.detach())
        return update(name, loss)

    learner.update = spy  # type: ignore[method-assign]
    with torch.no_grad():
        z = learner.head(learner.amortizer.embed(X))
        # log p(x, z) has the energy too, which is not learned yet.
        assert learner.model.prior.energy is not None
        joint = learner.model.posterior(X)(z) + learner.model.prior.energy(z)
    learner.step(X, INDEX, seeded())
    torch.testing.assert_close(losses[0], -2 * 0.5**2 * joint.mean())


def test_standardized_codes_have_the_moments_of_the_prior() -> None:
    head = CodeHead(5, 3, standardize=True)
    e = 3 + 7 * torch.randn(50, 5, generator=seeded())
    z = head(e)
    torch.testing.assert_close(z.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.var(0, correction=0), torch.ones(3))
    with torch.no_grad():  # so that no scale of the weights is worth learning
        head.linear.weight *= 10
    torch.testing.assert_close(head(e), z, atol=1e-4, rtol=0)


def test_warming_up_needs_an_encoder() -> None:
    model = make().model
    with pytest.raises(BadInput, match="the amortizer must have an encoder to warm up"):
        DAMC(model, Amortizer(3), replace(QUICK, warm_up=0.5, horizon=4))


def test_the_last_iteration_has_chains_however_few_there_are() -> None:
    for horizon in (1, 2):
        learner = make(replace(QUICK, warm_up=0.9, horizon=horizon))
        for _ in range(horizon):
            metrics = learner.step(X, INDEX, seeded())
        assert "displacement" in metrics
