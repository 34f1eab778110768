"""The checks behind a verdict: each passes where it should and fails where it must."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover
from damc.kernels.pilot import Paths, Pilot
from damc.kernels.reference import Reference
from damc.kernels.smc import Annealed
from damc.kernels.tails import tail_index
from damc.sampling.jumps import Jumps, MixtureProposal
from damc.sampling.verdict import (
    Evidence,
    lost_paths,
    shift,
    shift_noise,
    verdict,
    worth,
    worth_each,
)
from damc.sampling.weights import weights

D = torch.float64
LOG_Z = math.log(2 * math.pi)


def normal(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 2, dtype=D, generator=torch.Generator().manual_seed(seed))


def state(z: Tensor) -> State:
    return State(z, -z.square().sum(1) / 2, -z)


def annealed(z: Tensor, spread: float = 0.01) -> Annealed:
    noise = torch.randn(8, dtype=D, generator=torch.Generator().manual_seed(5))
    mover = Mover(HMC(1.0))
    return Annealed(state(z), LOG_Z + spread * noise, [0.5, 1.0], [0.8, 0.8], mover, True, 1000)


def found(means: list[list[float]]) -> Pilot:
    mean = torch.tensor(means, dtype=D)
    eye = torch.eye(2, dtype=D)
    paths = Paths(mean, eye.repeat(len(mean), 1, 1), torch.full((len(mean),), LOG_Z - 0.7, dtype=D))
    return Pilot(paths, mean, Reference(torch.zeros(2, dtype=D), eye))


def evidence(**changed: object) -> Evidence:
    good: dict[str, object] = {
        "target": lambda z: -z.square().sum(1) / 2,
        "support": None,
        "found": found([[0.0, 0.0]]),
        "first": annealed(normal(1024, 1)),
        "reference": found([[0.0, 0.0]]).reference,
        "runs": [],
        "annealed": annealed(normal(2048, 2)),
        "jumps": None,
        "second": annealed(normal(2048, 2)),
        "states": [state(normal(2048, seed)) for seed in (3, 4)],
        "acceptance": 0.8,
        "lost": 0,
        "tail_slope": -math.inf,
        "pole_slope": 2.0,
        "budget": Budget(),
        "gradient_calls": 1000,
    }
    return Evidence(**{**good, **changed})  # type: ignore[arg-type]


def test_good_draws_pass_and_every_fault_is_named() -> None:
    trusted, report, checks = verdict(evidence())
    assert trusted and report.startswith("all checks passed") and checks["lost paths"] == 0
    wide = [state(normal(2048, 3) * 2)]
    moved = [state(normal(2048, 3) + 1)]
    stuck = [state(torch.cat([normal(2048, 2)[:200], normal(2048, 3)[200:]]))]
    drift = torch.arange(8, dtype=D).repeat_interleave(256)[:, None]
    apart = [state(normal(2048, 3) + drift)]
    lonely = annealed(normal(2048, 2), spread=2.0)
    faults = {
        "improper": {"states": wide},
        "shift the draws": {"states": moved},
        "could not be moved": {"states": stuck},
        "islands disagree: a coordinate": {"states": apart},
        "disagree on the evidence": {"second": lonely},
        "accepts only": {"acceptance": 0.1},
        "too few particles are left near 2": {"lost": 2},
        "budget ended": {"budget": Budget(gradients=10, spent=11)},
        "density is improper: far away": {"tail_slope": 0.0},
        "density is unbounded: it has a pole": {"pole_slope": 0.0},
        "finite integral (tail": {"states": [state(torch.exp(20 * normal(2048, 3).abs()))]},
    }
    for words, fault in faults.items():
        trusted, report, _ = verdict(evidence(**fault))
        assert not trusted and words in report, words


def test_a_region_without_particles_is_lost() -> None:
    only_left = annealed(normal(2000) - 20)
    assert lost_paths(found([[-20.0, -20.0]]), only_left) == 0
    assert lost_paths(found([[-20.0, -20.0], [20.0, 20.0]]), only_left) == 1


def test_islands_that_agree_are_worth_all_their_draws() -> None:
    z = normal(16_000)
    ess = worth([state(z)], 8)
    assert 6000 < ess <= 16_000
    flat = state(z)._replace(log_prob=torch.zeros(len(z), dtype=D))
    assert float(worth_each([flat], 8).min()) > 3000
    shift = torch.linspace(-0.5, 0.5, 8, dtype=D).repeat_interleave(2000)
    z[:, 1] += shift
    assert float(worth_each([state(z)], 8).min()) < 200 and worth([state(z)], 8) < 1500


def test_tail_indices() -> None:
    u = torch.rand(50_000, 1, dtype=D, generator=torch.Generator().manual_seed(0))
    cauchy = torch.tan(math.pi * (u - 0.5))
    assert abs(tail_index(cauchy) - 1) < 0.15
    assert tail_index(normal(50_000)) < 0.3
    assert tail_index(torch.exp(30 * u)) < 1.5 < tail_index(1 / u**2)


def test_noise_of_many_coordinates_is_no_shift() -> None:
    """Two sets of 256 points of one law in 1,600 dimensions, as of a large spatial model."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 1600, dtype=D, generator=g)
    moved, grown = shift(a, b)
    assert moved > 0.3  # which would be a shift in a few dimensions
    assert moved < 0.1 + shift_noise(256, 1600) and grown < 0.25 + shift_noise(256, 1600)
    assert shift(a, b + 0.8)[0] > 0.1 + shift_noise(256, 1600)
    assert shift_noise(4096, 2) < 0.12


def test_two_modes_of_equal_mass_do_not_shift_though_their_median_jumps() -> None:
    g = torch.Generator().manual_seed(0)

    def modes(right: int) -> Tensor:
        side = torch.where(torch.arange(4000)[:, None] < right, 50.0, -50.0)
        return side + torch.randn(4000, 1, dtype=D, generator=g)

    before, after = modes(1990), modes(2010)
    assert float(after.median() - before.median()) > 90
    assert shift(before, after)[0] < 0.05
    assert shift(before, modes(2600))[0] > 0.1 + shift_noise(4000, 1)  # 15 % of the mass moved
    still = torch.randn(4000, 1, dtype=D, generator=g)
    assert shift(still, still + 0.2)[0] == pytest.approx(0.2, abs=0.01)


def test_weights_of_a_sampler_that_tell_another_evidence() -> None:
    noise = 0.2 * normal(2000, 7)[:, 0]
    trusted, _, checks = verdict(evidence(), weights(LOG_Z + noise))
    assert trusted and abs(checks["sampler evidence gap"]) < 0.1
    trusted, report, _ = verdict(evidence(), weights(LOG_Z + 1 + noise))
    assert not trusted and "weights disagree on the evidence" in report
    assert verdict(evidence(), weights(LOG_Z + 1 + 30 * noise))[0]  # too uneven to tell


def test_jumps_must_agree_with_annealing_and_notes_are_told() -> None:
    jumps = Jumps(MixtureProposal(normal(2000)), None, 0.5)
    trusted, report, checks = verdict(evidence(jumps=jumps, notes=("there was no time",)))
    assert trusted and report.endswith("; there was no time")
    assert checks["jumps"] == 0.5 and abs(checks["bridge above annealing"]) < 0.1
    far = annealed(normal(2048, 2))
    far = replace(far, island_evidence=far.island_evidence - 1.0)
    trusted, report, _ = verdict(evidence(jumps=jumps, annealed=far, notes=("in haste",)))
    assert not trusted and "after jumps disagree" in report and report.endswith("; in haste")


def test_islands_weigh_alike_after_jumps() -> None:
    jumps = Jumps(MixtureProposal(normal(2000)), None, 0.5)
    second = annealed(normal(2048, 2), spread=0.5)
    assert not evidence(second=second, jumps=jumps).island_weights.any()
    weights = evidence(second=second).island_weights
    assert weights.std() > 0.2 and float(weights.exp().mean()) == pytest.approx(1.0)
