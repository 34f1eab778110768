"""NALR: first the model, then the amortizer, and never both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from damc import BadInput
from damc.learn import find_method

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
INDEX = torch.arange(6)


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    quick = {"posterior_steps": 2, "prior_steps": 2, "horizon": 6, "first": 0.5}
    return find_method("nalr").from_preset("digits-small", **(quick | changes))


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(*modules: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for module in modules for p in module.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(p.equal(q) for p, q in zip(a, b, strict=True))


def test_each_stage_learns_its_own_part_and_the_chains_go_on_through_both() -> None:
    learner = make()
    model, q = weights(learner.model), weights(learner.amortizer)
    for k in range(3):
        learner.step(X, INDEX, seeded(k))
    assert not same(model, weights(learner.model)) and same(q, weights(learner.amortizer))
    model, ends = weights(learner.model), learner.chains["posterior"].starts.z.clone()
    metrics = learner.step(X, INDEX, seeded(3))
    assert same(model, weights(learner.model)) and not same(q, weights(learner.amortizer))
    # The first chain of the second stage starts where the last of the first one ended.
    kernel, target = learner.chains["posterior"].kernel, learner.model.posterior(X)
    noise = seeded(3)
    learner.chains["posterior"].starts.draw(X, INDEX, noise)  # takes as much noise as a draw does
    assert learner.chains["posterior"].starts.z.equal(kernel.run(ends, target, noise)[0].z)
    assert "amortizer_loss" in metrics and "energy_difference" not in metrics


def test_the_amortizer_is_used_once_it_has_learned() -> None:
    learner = make()
    for k in range(3):
        learner.step(X, INDEX, seeded(k))
    assert learner.sources == ("energy", "gaussian")
    before = learner.infer(X, generator=seeded())
    assert before.equal(learner.infer(X, source="gaussian", generator=seeded()))
    learner.step(X, INDEX, seeded(3))
    assert learner.sources == ("amortizer", "energy", "gaussian")
    after = learner.infer(X, steps=0, generator=seeded())
    assert after.equal(learner.amortizer.sample(x=X, generator=seeded()))


def test_every_rate_falls_over_its_own_stage() -> None:
    rates = make(horizon=100, first=0.7, amortizer_rate=1e-3).optimizers.rates
    assert rates["decoder"].at(70) == rates["energy"].at(70) == 1e-5
    assert rates["amortizer"].at(0) == rates["amortizer"].at(70) == pytest.approx(1e-3)
    assert rates["amortizer"].at(100) == pytest.approx(1e-5)


def test_stages_want_a_horizon() -> None:
    with pytest.raises(BadInput, match="give the number of iterations"):
        make(horizon=1)
