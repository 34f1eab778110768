"""Where distillation's chains start: at pairs, at q's points by weight, and with q's proposals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from damc import MALA, Amortizer, BadInput, distill
from damc.amortize.proposals import AmortizerProposal, batches_of, starts_of

SMALL: dict[str, Any] = {"widths": (8, 8, 8), "embedding": 8}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def log_normal(z: Tensor) -> Tensor:
    return -z.square().sum(1) / 2 - math.log(2 * math.pi)


class Normal(AmortizerProposal):
    """An amortizer that has learned N(0, I), with its exact density."""

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.randn(n, 2, generator=generator)

    def log_prob(self, z: Tensor) -> Tensor:
        return log_normal(z)


def test_starts_are_the_points_that_belong_to_the_contexts() -> None:
    z, x = torch.arange(40.0).view(20, 2), torch.arange(20.0)[:, None]
    batches = batches_of(None, (z, x), 8, 2, seeded())
    contexts, own = next(batches)
    assert contexts is not None and own is not None and len(own) == 8
    assert torch.equal(own[:, 0], 2 * contexts[:, 0])
    torch.manual_seed(0)
    proposal = Normal(Amortizer(2, 1, **SMALL), contexts)
    for fresh, kept in ((1.0, 8), (0.5, 4)):
        start = starts_of(proposal, 8, fresh, None, own, log_normal, 1, seeded())
        assert int((start == own).all(1).sum()) == kept
    asked = []

    def simulate(n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        asked.append(n)
        return z[:n], x[:n]

    assert torch.equal(next(batches_of(None, simulate, 5, 2, seeded()))[1], z[:5])  # type: ignore[arg-type]
    assert asked == [5]
    with pytest.raises(BadInput, match=r"z of shape \(N, 3\) and as many x, got \(20, 2\)"):
        next(batches_of(None, (z, x), 8, 3, seeded()))


def test_candidates_are_chosen_by_their_weight() -> None:
    """64 points of N(0, I) compete for each start of N(1, I); alone they stay where they are."""
    torch.manual_seed(0)
    proposal = Normal(Amortizer(2, **SMALL))

    def target(z: Tensor) -> Tensor:
        return log_normal(z - 1)

    for candidates, mean in ((1, 0.0), (64, 1.0)):
        z = starts_of(proposal, 2000, 0.0, None, None, target, candidates, seeded())
        assert (z.mean(0) - mean).abs().max() < 4 / math.sqrt(2000) + 0.05


def test_distill_takes_pairs_and_proposals_of_q(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AmortizerProposal, "log_prob", lambda self, z: log_normal(z))
    torch.manual_seed(0)
    q = Amortizer(2, 1, **SMALL)
    pairs = (torch.randn(100, 2, generator=seeded()), torch.zeros(100, 1))

    def target(z: Tensor, x: Tensor) -> Tensor:
        return log_normal(z - x)

    options: dict[str, Any] = {"progress": False, "generator": seeded(), "batch": 16, "updates": 1}
    options["sampling"] = {"solver": "ddim", "steps": 2}
    history = distill(
        q, target, MALA(0.3, 2), pairs=pairs, iterations=3, proposals=2, fresh=0.5, **options
    )
    assert len(history.jumps) == 2 and all(0 < share <= 1 for share in history.jumps)
    # Two moves and the first gradient, then in later iterations two more of each kind.
    assert history.gradient_calls == 16 * (3 * 3 + 2 * 4)
    cut = distill(q, target, MALA(0.3, 2), pairs=pairs, iterations=10**6, minutes=1e-3, **options)
    assert 1 <= len(cut.loss) < 1000
    for wrong, words in (
        ({"pairs": pairs, "contexts": pairs[1]}, "pairs hold contexts and starts"),
        ({"pairs": pairs, "candidates": 0}, "candidates must be at least 1"),
        ({"pairs": pairs, "minutes": 0.0}, "minutes must be positive, got 0.0"),
    ):
        with pytest.raises(BadInput, match=words):
            distill(q, target, MALA(0.3, 2), iterations=1, **{**options, **wrong})
    alone = Amortizer(2, **SMALL)
    with pytest.raises(BadInput, match="an amortizer with a context, got one without"):
        distill(alone, target, MALA(0.3, 2), iterations=1, pairs=pairs, **options)
