from __future__ import annotations

import sys

import pytest
import torch

from damc.errors import BadInput
from damc.metrics.chains import ess, rhat


def ar1(steps: int, chains: int, correlations: list[float], seed: int) -> torch.Tensor:
    """Stationary AR(1) chains `z <- r z + sqrt(1 - r^2) w`, one coordinate per r, (T, B, d)."""
    g = torch.Generator().manual_seed(seed)
    r = torch.tensor(correlations, dtype=torch.float64)
    w = torch.randn(steps, chains, len(r), generator=g, dtype=torch.float64)
    trace = [w[0]]
    for noise in w[1:]:
        trace.append(r * trace[-1] + (1 - r**2).sqrt() * noise)
    return torch.stack(trace)


def test_ess_of_autoregressive_chains() -> None:
    """An AR(1) chain is worth T (1 - r) / (1 + r) independent draws."""
    pytest.importorskip("arviz")
    correlations = [0.0, 0.5, 0.9]
    found = ess(ar1(4000, 4, correlations, seed=0))
    exact = torch.tensor([16_000 * (1 - r) / (1 + r) for r in correlations], dtype=torch.float64)
    # The estimate's own error grows with r; 15 % is about three times its spread at r = 0.9.
    assert ((found / exact - 1).abs() < 0.15).all()


def test_ess_never_exceeds_the_draws() -> None:
    """Neighbors with correlation -0.8 are worth 9 T for the mean; no table may say that."""
    pytest.importorskip("arviz")
    assert float(ess(ar1(500, 4, [-0.8], seed=0))) == 2000


def test_rhat_is_one_for_mixed_chains_and_not_for_stuck_ones() -> None:
    pytest.importorskip("arviz")
    trace = ar1(1000, 4, [0.5, 0.5], seed=1)
    trace[:, 0, 1] += 1.0
    mixed, stuck = rhat(trace).tolist()
    assert mixed < 1.01
    assert stuck > 1.05


def test_bad_input_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"\(T, B, d\)"):
        ess(torch.zeros(10, 2))
    with pytest.raises(BadInput, match="at least 2"):
        rhat(torch.zeros(10, 1, 2))
    with pytest.raises(BadInput, match="NaN"):
        ess(torch.full((10, 2, 1), torch.nan))
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(BadInput, match=r"\.\[diagnostics\]"):
        ess(torch.zeros(10, 2, 1))
