"""Proposals of a mixture that fits the draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover
from damc.sampling.jumps import Jumps, MixtureProposal, bridge, jump, jumps_for, shapes

D = torch.float64


def log_prob(z: Tensor) -> Tensor:
    """Modes of masses 0.75 and 0.25 at -10 and 10, of sds 1 and 0.2, normalized."""
    wide = math.log(0.75) - (z + 10).square().sum(1) / 2
    narrow = math.log(0.25) - (z - 10).square().sum(1) / 0.08 - 2 * math.log(0.2)
    return torch.logaddexp(wide, narrow) - math.log(2 * math.pi)


def even(n: int, seed: int = 0) -> Tensor:
    """Both modes, but with equal masses."""
    g = torch.Generator().manual_seed(seed)
    right = torch.arange(n)[:, None] % 2 == 1
    w = torch.randn(n, 2, dtype=D, generator=g)
    return torch.where(right, 10 + 0.2 * w, -10 + w)


def test_draws_of_the_proposal_have_its_density() -> None:
    proposal = MixtureProposal(even(2000), torch.Generator().manual_seed(0))
    z = proposal.sample(20_000, torch.Generator().manual_seed(1))
    ratio = (log_prob(z) - proposal.log_prob(z)).exp()
    assert abs(float(ratio.mean()) - 1) < 5 * float(ratio.std()) / math.sqrt(len(z)) < 0.1


def test_jumps_set_the_masses_of_modes_right() -> None:
    g = torch.Generator().manual_seed(0)
    z = even(4000)
    proposal = MixtureProposal(z, g)
    state = State(z, *value_and_grad(log_prob, z))
    for _ in range(25):
        state, accepted = jump(state, log_prob, proposal, g)
    right = state.z[:, 0] > 0
    assert accepted > 0.3
    assert abs(float(right.double().mean()) - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4000)
    assert abs(float(state.z[right, 1].std()) - 0.2) < 0.02
    assert torch.allclose(state.log_prob, log_prob(state.z))  # type: ignore[arg-type]


def exact(n: int, seed: int = 0) -> Tensor:
    """Draws with the right masses."""
    g = torch.Generator().manual_seed(seed)
    right = torch.rand(n, 1, generator=g) < 0.25
    w = torch.randn(n, 2, dtype=D, generator=g)
    return torch.where(right, 10 + 0.2 * w, -10 + w)


def state_of(z: Tensor) -> State:
    return State(z, *value_and_grad(log_prob, z))


def test_independent_coordinates_are_proposed_by_their_marginals() -> None:
    g = torch.Generator().manual_seed(0)
    w = torch.randn(4000, 6, dtype=D, generator=g)
    z = torch.where(torch.rand(4000, 6, generator=g) < 0.3, 4.0, -4.0) + w
    proposal = MixtureProposal(z, g, shapes(6))
    assert proposal.mixture.blocks == 6
    drawn = proposal.sample(20_000, g)
    assert abs(float((drawn > 0).double().mean()) - 0.3) < 0.02
    together = MixtureProposal(w + z[:, :1].sign() * 4, g, shapes(6))
    assert together.mixture.blocks == 1


def test_particles_with_wrong_masses_are_set_right_by_jumps_that_fit_them() -> None:
    g, budget = torch.Generator().manual_seed(0), Budget()
    mover = Mover(HMC(1.0, leapfrogs=3, target_acceptance=None))
    mover.adapt(even(2000))
    found = jumps_for(state_of(even(2000)), mover, log_prob, budget, g)
    assert found is not None
    jumps, state = found
    assert abs(float((state.z[:, 0] > 0).double().mean()) - 0.25) < 4 * math.sqrt(0.19 / 2000)
    assert jumps.acceptance > 0.3 and budget.spent >= 2 * 5 * 2000


def test_jumps_that_are_refused_are_given_up() -> None:
    """A ring in 20 dimensions, thin and far out: no mixture of few Gaussians fits it."""

    def shell(z: Tensor) -> Tensor:
        return -(z.norm(dim=1) - 100).square() / 2e-4

    g = torch.Generator().manual_seed(0)
    z = torch.randn(2000, 20, dtype=D, generator=g)
    z = 100 * z / z.norm(dim=1, keepdim=True)
    mover = Mover(HMC(1.0, leapfrogs=3, target_acceptance=None))
    state = State(z, *value_and_grad(shell, z))
    assert jumps_for(state, mover, shell, Budget(), g) is None


def test_a_bridge_tells_the_evidence_even_if_the_mixture_misses_a_mode() -> None:
    g = torch.Generator().manual_seed(0)
    states = [state_of(exact(8000, seed)) for seed in (1, 2)]
    complete = Jumps(MixtureProposal(exact(4000, 3), g), None)
    found = bridge(complete, log_prob, states, 8, Budget(), g)
    assert found.shape == (8,)
    assert abs(float(found.mean())) < 4 * float(found.std()) / math.sqrt(8) < 0.03  # log Z = 0
    left = exact(4000, 3)
    blind = Jumps(MixtureProposal(left[left[:, 0] < 0], g), None)
    found = bridge(blind, log_prob, states, 8, Budget(), g)
    assert abs(float(found.mean())) < 4 * float(found.std()) / math.sqrt(8) < 0.06
    # What the mean weight says instead: a quarter of the mass is missing.
    z = blind.proposal.sample(20_000, g)
    mean = (log_prob(z) - blind.proposal.log_prob(z)).exp().mean()
    assert abs(float(mean) - 0.75) < 0.03
