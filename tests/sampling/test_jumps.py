"""Proposals of a mixture that fits the draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.kernels.base import State
from damc.sampling.jumps import MixtureProposal, jump

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
