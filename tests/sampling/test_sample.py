"""damc.sample: right draws where it says so, a warning where it does not, clear sentences."""

from __future__ import annotations

import math
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints

import damc
from damc import BadInput, Draws, sample

D = torch.float64


def off_scale(z: Tensor) -> Tensor:
    """N(50, 10^2) in two dimensions."""
    return -((z - 50) / 10).square().sum(1) / 2


@pytest.fixture(scope="module")
def draws() -> Draws:
    return sample(off_scale, 2, n=2000, seed=1)


def test_a_gaussian_off_unit_scale(draws: Draws) -> None:
    assert draws.trusted and draws.report.startswith("all checks passed")
    assert draws.samples.shape == (2000, 2) and draws.log_weights.shape == (2000,)
    w = (draws.samples - 50) / 10
    error = 1 / math.sqrt(draws.ess)
    assert w.mean(0).abs().max() < 4 * error and (w.std(0) - 1).abs().max() < 4 * error
    assert 500 < draws.ess <= 2000
    exact = math.log(2 * math.pi * 100)
    assert abs(draws.log_evidence - exact) < max(4 * draws.log_evidence_error, 0.02)
    assert draws.gradient_calls > 2000


def test_one_seed_repeats_bit_for_bit_and_leaves_torch_alone(draws: Draws) -> None:
    before = torch.get_rng_state()
    again = sample(off_scale, 2, n=2000, seed=1)
    assert again.samples.equal(draws.samples) and again.log_evidence == draws.log_evidence
    assert torch.get_rng_state().equal(before)
    assert not sample(off_scale, 2, n=2000, seed=2).samples.equal(draws.samples)


def test_a_support_bounds_the_draws() -> None:
    """A uniform box: means, variances and evidence in closed form."""
    low, high = torch.tensor([0.0, -5.0], dtype=D), torch.tensor([1.0, 5.0], dtype=D)
    found = sample(lambda x: 0 * x.sum(1), 2, 2000, support=constraints.interval(low, high))
    x = (found.samples - low) / (high - low)
    assert found.trusted and bool(((x > 0) & (x < 1)).all())
    assert (x.mean(0) - 0.5).abs().max() < 0.03 and (
        x.std(0) * math.sqrt(12) - 1
    ).abs().max() < 0.05
    assert abs(found.log_evidence - math.log(10)) < 0.05


def test_far_out_on_a_support_numbers_are_rounded_and_no_density_is_improper() -> None:
    law = torch.distributions.Dirichlet(torch.tensor([2.0, 0.5, 1.0], dtype=D), validate_args=False)
    found = sample(law, 3, n=1000, support=constraints.simplex)
    assert found.trusted and abs(found.log_evidence) < 0.1
    # 1 / x on the half-line has no integral, and that is still seen.
    endless = sample(lambda x: -x.log().sum(1), 1, 500, support=constraints.positive)
    assert not endless.trusted and "improper" in endless.report


def test_two_far_modes_of_different_width_get_their_masses() -> None:
    def log_prob(z: Tensor) -> Tensor:
        left = math.log(0.7 / 1.0**2) - (z + 20).square().sum(1) / 2
        right = math.log(0.3 / 0.5**2) - ((z - 20) / 0.5).square().sum(1) / 2
        return torch.logaddexp(left, right) - math.log(2 * math.pi)

    found = sample(log_prob, 2, n=2000)
    weight = found.log_weights.exp()
    right = float(((found.samples[:, 0] > 0) * weight).sum() / weight.sum())
    assert abs(right - 0.3) < 0.08 and abs(found.log_evidence) < 0.2


def test_an_improper_density_is_not_trusted() -> None:
    found = sample(lambda z: -z[:, 0].square() / 2 + 0 * z[:, 1], 2, n=1000)
    assert not found.trusted and found.report.startswith("do not trust these draws")


def test_a_budget_that_is_too_small_is_not_trusted() -> None:
    found = sample(off_scale, 2, n=1000, gradients=20_000)
    assert not found.trusted and "budget" in found.report
    assert found.gradient_calls < 60_000


def test_a_float32_model_is_given_what_it_can_take() -> None:
    a = torch.tensor([[2.0, 0.0], [0.5, 1.0]])
    found = sample(lambda z: -(z @ a).square().sum(1) / 2, 2, n=1000)
    covariance = torch.linalg.inv(a @ a.T).double()
    assert found.trusted
    torch.testing.assert_close(found.samples.T.cov(), covariance, rtol=0.2, atol=0.1)


def test_regions_without_density_are_avoided() -> None:
    def ring(z: Tensor) -> Tensor:
        radius = z.norm(dim=1)
        return torch.where((radius > 1) & (radius < 2), -radius, torch.nan)

    found = sample(ring, 2, n=1000)
    radius = found.samples.norm(dim=1)
    assert bool(((radius > 1) & (radius < 2)).all())
    exact = math.log(2 * math.pi * (2 * math.exp(-1) - 3 * math.exp(-2)))
    assert abs(found.log_evidence - exact) < 0.1


def test_draws_go_to_arviz_and_to_a_figure(draws: Draws) -> None:
    pytest.importorskip("arviz")
    data = draws.to_arviz()
    assert data.posterior["z"].shape[0] == draws.islands
    assert data.posterior["z"].shape[-1] == 2
    assert len(draws.plot().axes) == 9  # pairs, a trace of each, weights


def test_arviz_is_asked_for_in_one_sentence(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(BadInput, match=r"damc\[diagnostics\]"):
        draws.to_arviz()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sample(off_scale, 0), "dim must be a positive whole number, got 0"),
        (lambda: sample(off_scale, 2.0), "dim must be a positive whole number"),  # type: ignore[arg-type]
        (lambda: sample(off_scale, 2, n=0), "n must be a positive whole number"),
        (lambda: sample(off_scale, 2, minutes=0), "minutes must be a positive number, got 0"),
        (lambda: sample(lambda z: z, 2), r"one value for each point, shape \(8,\)"),
        (lambda: sample(lambda z: z.sum(), 2), r"got shape \(\)"),
        (lambda: sample(lambda z: np.sum(z.numpy(), 1), 2), "in torch operations"),
        (lambda: sample(lambda z: z.detach().numpy().sum(1), 2), "must return a tensor"),
        (lambda: sample(lambda z: z @ torch.ones(3), 2), r"shape \(B, 2\) in torch operations"),
        (lambda: sample(lambda z: torch.zeros(len(z)), 2), "depend on its points"),
        (lambda: sample(lambda z: z.sum(1) + 0j, 2), "must return real numbers, got"),
        (lambda: sample(lambda z: -(z @ z), 2), "give torch.vmap"),
        (lambda: sample(lambda z: -(z - z.mean(0)).square().sum(1), 2), "mix no points"),
        (lambda: sample(lambda z: -z.square().sum(0), 8), "same value in every batch"),
        (lambda: sample(lambda z: off_scale(z) + torch.randn(len(z)), 2), "no random numbers"),
        (lambda: sample(torch.distributions.Gamma(2.0, 1.0), 1), "by support="),
        (lambda: sample(off_scale, 2, seed=1.5), "seed must be a whole number"),  # type: ignore[arg-type]
        (lambda: sample(off_scale, 2, seed=2**70), "seed must be a whole number"),
        (lambda: sample(off_scale, 2, minutes="1"), "minutes must be a positive number"),  # type: ignore[arg-type]
        (lambda: sample(off_scale, 2, gradients="x"), "gradients must be a positive number"),  # type: ignore[arg-type]
        (lambda: sample("density", 2), "callable"),
        (lambda: sample(off_scale, True), "dim must be a positive whole number, got True"),
        (lambda: sample(off_scale, 2, resume="draws"), "resume must be draws of an earlier call"),  # type: ignore[arg-type]
        (lambda: sample(off_scale, 2, support="box"), "support must be a constraint"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_sentence(make: object, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()  # type: ignore[operator]


def test_a_density_that_is_nowhere_finite_is_named() -> None:
    with pytest.raises(damc.Diverged, match="finite at none"):
        sample(lambda z: z.sum(1) * torch.nan, 2)


def test_a_call_can_be_resumed_with_a_new_budget() -> None:
    short = sample(off_scale, 2, n=1000, gradients=300_000)
    longer = sample(off_scale, 2, n=1000, resume=short)
    assert longer.islands == 2 * short.islands
    assert longer.gradient_calls > short.gradient_calls and longer.trusted
    old, new = longer.evidence.runs[0], longer.evidence.runs[-1]  # type: ignore[union-attr]
    assert not old.state.z[0].equal(new.state.z[0])
    exact = math.log(2 * math.pi * 100)
    assert abs(longer.log_evidence - exact) < max(4 * longer.log_evidence_error, 0.02)
    with pytest.raises(BadInput, match="resume must be draws of dimension 3, got 2"):
        sample(lambda z: -z.square().sum(1), 3, resume=short)


def test_a_bar_counts_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    sample(off_scale, 2, n=500, progress=True)
    assert "gradients" in capsys.readouterr().err
    sample(off_scale, 2, n=500)
    assert not capsys.readouterr().err


IMPROPER = {
    "1 / (1 + |z|), 1-D": (lambda z: -torch.log1p(z.abs()).sum(1), 1),
    "1 / (1 + |z|^2), 2-D": (lambda z: -torch.log1p(z.square().sum(1)), 2),
    "flat in one coordinate": (lambda z: -z[:, 0].square() / 2 + 0 * z[:, 1], 2),
    "1 / (1 + |z_2|) in one coordinate": (
        lambda z: -z[:, 0].square() / 2 - torch.log1p(z[:, 1].abs()),
        2,
    ),
}


@pytest.mark.parametrize("name", IMPROPER)
def test_improper_densities_are_named_as_such(name: str) -> None:
    log_prob, dim = IMPROPER[name]
    found = sample(log_prob, dim, n=1000, gradients=600_000)
    assert not found.trusted and "improper" in found.report


def test_a_pole_without_an_integral_is_named() -> None:
    """|z|^-3 exp(-|z|^2 / 2) in three dimensions: its mass diverges like log r."""
    try:
        found = sample(
            lambda z: -3 * z.norm(dim=1).log() - z.square().sum(1) / 2, 3, 1000, gradients=900_000
        )
    except damc.Diverged as error:
        assert "pole" in str(error)
    else:
        assert not found.trusted and "pole" in found.report


def test_a_pole_with_an_integral_and_heavy_tails_pass() -> None:
    found = sample(lambda z: -z.norm(dim=1).log() - z.square().sum(1) / 2, 2, gradients=10**6)
    assert found.checks["pole slope"] > 0.5
    cauchy = sample(lambda z: -torch.log1p(z.square()).sum(1), 1, n=1000, gradients=10**6)
    assert -1.1 < cauchy.checks["tail slope"] < -0.9


def test_a_far_narrow_mode_that_no_chain_reaches_is_found() -> None:
    """Half of the mass in a mode of width 0.1, 60 sds away from the wide one."""

    def log_prob(z: Tensor) -> Tensor:
        far = z - torch.tensor([45.0, -40.0], dtype=z.dtype)
        wide = -z.square().sum(1) / 2
        return torch.logaddexp(wide, -far.square().sum(1) / 0.02 + 2 * math.log(10))

    found = sample(log_prob, 2, n=2000)
    share = float((found.log_weights.exp() * (found.samples[:, 0] > 20)).mean())
    assert not found.trusted or abs(share - 0.5) < 0.1
    assert found.checks["lost paths"] > 0 or share > 0.05


def test_the_sd_of_heavy_tails_is_found_by_weights() -> None:
    """Of a Student t with 3 degrees, 2,000 exact draws tell the sds within 0.1 to 0.2 only."""

    def log_prob(z: Tensor) -> Tensor:
        return -4 * torch.log1p(z.square().sum(1) / 3)  # 3 degrees, 5 dimensions

    draws = damc.sample(log_prob, 5, n=2000)
    w = torch.softmax(draws.log_weights, 0)[:, None]
    sd = (w * draws.samples.square()).sum(0).sqrt()
    assert draws.trusted, draws.report
    assert float((sd / math.sqrt(3) - 1).abs().max()) < 0.05
    assert draws.log_weights.std() > 0.1 and 1000 < draws.ess <= 2000
    far = draws.samples.norm(dim=1) > 30
    assert float(draws.log_weights[far].max()) < 0 < int(far.sum())


def test_numbers_of_numpy_are_numbers(draws: Draws) -> None:
    again = sample(off_scale, np.int64(2), n=np.int64(2000), seed=np.int64(1))  # type: ignore[arg-type]
    assert torch.equal(again.samples, draws.samples)


def test_a_uniform_density_needs_no_gradient() -> None:
    box = constraints.interval(-1.0, 3.0)
    draws = sample(lambda x: torch.zeros(len(x)), 2, n=500, support=box)
    assert draws.trusted
    assert abs(draws.log_evidence - math.log(16)) < max(4 * draws.log_evidence_error, 0.02)


def test_resuming_another_density_is_refused(draws: Draws) -> None:
    with pytest.raises(BadInput, match="resume must be draws of the same log_prob and support"):
        sample(lambda z: off_scale(z - 5), 2, n=100, resume=draws)
    with pytest.raises(BadInput, match="resume must be draws of the same log_prob and support"):
        sample(off_scale, 2, n=100, support=constraints.positive, resume=draws)


def test_draws_are_short_to_print_and_can_be_compared_and_pickled(draws: Draws) -> None:
    assert repr(draws).startswith("Draws(2,000 in 2 dimensions, trusted, ess ")
    assert len(repr(draws)) < 400 and draws == draws and draws != sample(off_scale, 2, n=10)
    again = pickle.loads(pickle.dumps(draws))  # noqa: S301 - made above
    assert torch.equal(again.samples, draws.samples) and again.evidence is not None
    local = sample(lambda z: off_scale(z), 2, n=10)
    again = pickle.loads(pickle.dumps(local))  # noqa: S301 - made above
    assert torch.equal(again.samples, local.samples) and again.evidence is None


def test_fewer_draws_than_islands_are_one_chain() -> None:
    pytest.importorskip("arviz")
    assert sample(off_scale, 2, n=3).to_arviz().posterior["z"].shape == (1, 3, 2)
