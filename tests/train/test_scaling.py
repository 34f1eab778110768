"""The model of `benchmarks.scaling`: what is counted is what is done, and a line in the batch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.scaling import Counts, Machine, _learner, count, seconds
from benchmarks.timing import count_flops


def test_counts_are_those_of_an_iteration() -> None:
    found = count("digits-small", "damc-paper")
    learner, x = _learner("digits-small", "damc-paper", 7)
    step = partial(learner.step, x, torch.arange(7), torch.Generator().manual_seed(0))
    assert count_flops(step) == pytest.approx(found.fixed + 7 * found.each, rel=0.02)
    size = {
        name: sum(p.numel() for p in part.parameters())
        for name, part in (
            ("decoder", learner.model.decoder),
            ("energy", learner.model.prior.energy),
            ("amortizer", learner.amortizer),
        )
    }
    s = learner.settings
    updates = s.decoder_updates * [size["decoder"]]
    assert found.messages[: len(updates)] == tuple(4 * n for n in updates)
    assert found.messages[-1] == 4 * size["energy"]
    assert len(found.messages) == len(updates) + s.updates + 1
    # Starts and moves of both chains, and the noise of the amortizer's updates.
    moves = s.posterior_steps + s.prior_steps
    assert found.noise > moves * learner.model.latent_dim


def test_the_model_is_its_formula() -> None:
    counts = Counts(fixed=100.0, each=10.0, messages=(800, 400), row=4, noise=5.0)
    machine = Machine(rate=10.0, drawing=50.0, bandwidth=100.0, latency=0.5)
    assert seconds(counts, machine, 8, 1) == (18.0, 0.8, 0.0)
    computing, drawing, sent = seconds(counts, machine, 8, 4)
    assert (computing, drawing) == (12.0, 0.8)
    reduced = sum(2 * 3 / 4 * n / 100 + 2 * 2 * 0.5 for n in (800, 400))
    assert sent == pytest.approx(reduced + 3 / 4 * 32 / 100 + 1.0 + 2.0)
