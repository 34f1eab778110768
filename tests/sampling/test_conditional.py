"""Amortized posteriors: closed forms, modes, verdicts, and one sentence for bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints

import damc
from damc import BadInput, Draws
from damc.kernels.base import State
from damc.sampling.conditional import amortize
from damc.sampling.posterior import AmortizedPosterior, differ

D = torch.float64
NOISE = 0.5


def simulate(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """z ~ N(3, 2^2), x = z + noise."""
    z = 3 + 2 * torch.randn(n, 2, dtype=D, generator=generator)
    return z, z + NOISE * torch.randn(n, 2, dtype=D, generator=generator)


def log_prob(z: Tensor, x: Tensor) -> Tensor:
    prior = -((z - 3) / 2).square().sum(1) / 2 - 2 * math.log(2 * math.sqrt(2 * math.pi))
    noise = -((x - z) / NOISE).square().sum(1) / 2 - 2 * math.log(NOISE * math.sqrt(2 * math.pi))
    return prior + noise


def exact(x: Tensor) -> tuple[Tensor, float, float]:
    """Mean, standard deviation and log evidence of the posterior."""
    precision = 1 / 4 + 1 / NOISE**2
    mean = (3 / 4 + x / NOISE**2) / precision
    law = torch.distributions.Normal(3.0, math.sqrt(4 + NOISE**2))
    return mean, precision**-0.5, float(law.log_prob(x).sum())


@pytest.fixture(scope="module")
def posterior() -> AmortizedPosterior:
    return amortize(log_prob, 2, simulate, iterations=40)


def test_draws_of_a_new_observation_have_its_posterior(posterior: AmortizedPosterior) -> None:
    for x in (torch.tensor([2.0, 5.0], dtype=D), torch.tensor([[-2.0, 8.0]])):
        mean, sd, evidence = exact(x.double().flatten())
        draws = posterior.draws(x, 4000)
        assert isinstance(draws, Draws) and draws.samples.shape == (4000, 2)
        assert ((draws.samples.mean(0) - mean) / sd).abs().max() < 0.08
        assert (draws.samples.std(0) / sd - 1).abs().max() < 0.06
        assert draws.trusted, draws.report
        assert abs(draws.log_evidence - evidence) < 4 * draws.log_evidence_error + 0.02
        assert draws.gradient_calls > 4000
    again = posterior.draws(x, 4000)
    assert torch.equal(draws.samples, again.samples)
    assert not torch.equal(draws.samples, posterior.draws(x, 4000, seed=1).samples)


@pytest.mark.slow
def test_weights_give_the_evidence_and_correct_q() -> None:
    posterior = amortize(log_prob, 2, simulate, iterations=400)
    x = torch.tensor([2.0, 5.0], dtype=D)
    mean, sd, evidence = exact(x)
    draws = posterior.draws(x, 2000, refine=False, weigh=True)
    w = torch.softmax(draws.log_weights, 0)[:, None]
    assert draws.log_weights.exp().mean() == pytest.approx(1.0)
    assert (((w * draws.samples).sum(0) - mean) / sd).abs().max() < 0.3
    assert abs(draws.log_evidence - evidence) < 0.25
    assert draws.checks["pareto k"] < 0.7 and 0.1 < draws.checks["effective share"] <= 1
    alone = posterior.draws(x, 1000, refine=False, check=False)
    assert not alone.trusted and "q alone" in alone.report


def test_a_saved_posterior_draws_the_same(posterior: AmortizedPosterior, tmp_path: Path) -> None:
    posterior.save(tmp_path / "posterior")
    loaded = AmortizedPosterior.load(tmp_path / "posterior", log_prob)
    x = torch.tensor([2.0, 5.0], dtype=D)
    before, after = (p.draws(x, 500, check=False) for p in (posterior, loaded))
    assert torch.equal(before.samples, after.samples)
    assert loaded.history == posterior.history
    assert loaded.gradient_calls == posterior.gradient_calls
    file = tmp_path / "posterior.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    for place in ("posterior", "nothing"):
        with pytest.raises(BadInput, match="no amortized posterior could be read"):
            AmortizedPosterior.load(tmp_path / place, log_prob)
    posterior.save(file)
    with pytest.raises(BadInput, match="support must leave 2 free coordinates, got 1"):
        AmortizedPosterior.load(file, log_prob, support=constraints.simplex)


def test_observations_alone_are_enough_for_one_mode() -> None:
    x = simulate(3000, torch.Generator().manual_seed(5))[1]
    found = amortize(log_prob, 2, x, iterations=30)
    new = torch.tensor([6.0, 1.0], dtype=D)
    mean, sd, _ = exact(new)
    draws = found.draws(new, 4000)
    assert ((draws.samples.mean(0) - mean) / sd).abs().max() < 0.1
    assert (draws.samples.std(0) / sd - 1).abs().max() < 0.08


def test_supports_and_contexts_of_any_shape() -> None:
    """A rate with a Gamma(2, 1) prior, and three counts in a row: the posterior is a Gamma."""

    def counts(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        rate = torch._standard_gamma(torch.full((n, 1), 2.0, dtype=D), generator=generator)
        return rate, torch.poisson(rate.expand(-1, 3), generator=generator)[:, None]

    def poisson(z: Tensor, x: Tensor) -> Tensor:
        assert x.shape[1:] == (1, 3)
        return (1 + x.sum((1, 2))) * z[:, 0].log() - 4 * z[:, 0]

    g = torch.Generator().manual_seed(0)
    found = amortize(poisson, 1, counts(5000, g), support=constraints.positive, iterations=40)
    draws = found.draws(torch.tensor([[2.0, 4.0, 3.0]]), 4000)
    law = torch.distributions.Gamma(11.0, 4.0)
    assert float(draws.samples.min()) > 0 and draws.trusted, draws.report
    assert float(draws.samples.mean()) == pytest.approx(float(law.mean), abs=0.06)
    assert float(draws.samples.std()) == pytest.approx(float(law.stddev), rel=0.08)


def test_a_mode_that_q_never_learned_is_not_trusted() -> None:
    """The simulator knows one half of a posterior whose log-density has two."""

    def half(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        z = torch.randn(n, 1, dtype=D, generator=generator).abs() + 2
        return z, z + 0.3 * torch.randn(n, 1, dtype=D, generator=generator)

    def both(z: Tensor, x: Tensor) -> Tensor:
        prior = -(z[:, 0].abs() - 2).square() / 2
        return prior - (x[:, 0] - z[:, 0].abs()).square() / (2 * 0.09)

    found = amortize(both, 1, half, iterations=40)
    # Annealing starts where the simulator's points lie, widened: it must reach the other half.
    wide = AmortizedPosterior(
        found.target, found.amortizer, found.whiten, torch.cat([found.u, -found.u]), found.x,
        found.history, found.gradient_calls, found.seed,
    )  # fmt: skip
    draws = wide.draws(torch.tensor([3.0]), 2000)
    assert not draws.trusted and "knows nothing of q ends elsewhere" in draws.report


def test_ranks_tell_sets_of_points_apart() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 3, dtype=D, generator=g)
    state = State(z, -z.square().sum(1) / 2)
    shuffled = State(z[torch.randperm(4000, generator=g)] * 1.0, None)
    shuffled = shuffled._replace(log_prob=-shuffled.z.square().sum(1) / 2)
    assert differ(state, shuffled) == pytest.approx(0.0, abs=1e-9)
    for changed in (z + torch.tensor([0.0, 0.3, 0.0]), z * torch.tensor([1.0, 1.0, 1.3])):
        assert differ(State(changed, -changed.square().sum(1) / 2), state) > 0.05


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": None}, "context must be given for a log_prob of two arguments, (z, x)"),
        ({"context": np.zeros((9, 2))}, "context must be a tensor of observations"),
        ({"context": torch.zeros(1, 2)}, "context must hold many observations"),
        ({"context": torch.full((9, 2), math.nan)}, "context must be finite, got 18 values"),
        ({"context": (torch.zeros(200, 3), torch.zeros(200, 2))}, "z of shape (N, 2) and as many"),
        ({"context": (torch.zeros(200, 2), torch.zeros(9, 2))}, "z of shape (N, 2) and as many"),
        ({"context": (np.zeros((200, 2)), torch.zeros(200, 2))}, "z of the pairs must be a tensor"),
        ({"context": (torch.zeros(9, 2), torch.zeros(9, 2))}, "at least 100 pairs (z, x), got 9"),
        ({"context": lambda n: None}, "calling it raised"),
        ({"context": lambda n, g: torch.zeros(n, 2)}, "must return a pair of tensors (z, x)"),
        ({"context": lambda n, g: (torch.zeros(3, 2), torch.zeros(3, 2))}, "as many pairs as it"),
        ({"context": simulate, "support": constraints.unit_interval}, "inside the support"),
        ({"log_prob": lambda z: z.sum(1)}, "log_prob must take points (B, 2) and observations"),
        ({"log_prob": lambda z, x: z}, "one value for each pair of a point and an observation"),
        ({"log_prob": lambda z, x: z.detach().numpy()}, "must return a tensor, got ndarray"),
        ({"log_prob": lambda z, x: x.sum(1)}, "must depend on its points"),
        ({"log_prob": lambda z, x: z.sum(1) * math.nan}, "finite at only 0 of 4096 pairs"),
        ({"minutes": 0}, "minutes must be a positive number, got 0"),
        ({"amortize": True}, "amortize must be left out with a context"),
        ({"resume": object()}, "resume must be left out with a context"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(options: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"log_prob": log_prob, "dim": 2, "context": simulate, **options}
    with pytest.raises((BadInput, damc.Diverged)) as raised:
        damc.sample(**given)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_bad_observations_are_one_sentence(posterior: AmortizedPosterior) -> None:
    for x, words in (
        (torch.zeros(3), "x must be one observation of shape (2,), got shape (3,)"),
        (torch.zeros(4, 2), "x must be one observation of shape (2,), got shape (4, 2)"),
        (np.zeros(2), "x must be a tensor, got ndarray"),
        (torch.tensor([0.0, math.inf]), "x must be finite, got 1 values"),
    ):
        with pytest.raises(BadInput) as raised:
            posterior.draws(x)  # type: ignore[arg-type]
        assert words in str(raised.value)
    with pytest.raises(BadInput, match="n must be a whole number of at least 100, got 3"):
        posterior.draws(torch.zeros(2), 3)
