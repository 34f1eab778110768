"""The schedule against its printed values and its defining relations."""

from __future__ import annotations

import pytest
import torch

from damc import BadInput
from damc.diffusion.schedule import TruncatedCosine


def test_log_snr_has_the_published_values() -> None:
    u = torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)
    expected = torch.tensor([9.8, 1.842, 0.141, -1.459, -5.1], dtype=torch.float64)
    torch.testing.assert_close(TruncatedCosine().log_snr(u), expected, atol=5e-4, rtol=0)


def test_scales_preserve_variance_and_give_the_log_snr() -> None:
    schedule = TruncatedCosine()
    u = torch.linspace(0, 1, 50, dtype=torch.float64)
    alpha, sigma = schedule(u)
    torch.testing.assert_close(alpha**2 + sigma**2, torch.ones_like(u))
    torch.testing.assert_close(alpha**2, torch.sigmoid(schedule.log_snr(u)))
    ends = torch.stack([alpha[0], sigma[0], alpha[-1], sigma[-1]])
    published = torch.tensor([0.99997, 0.00745, 0.07784, 0.99697], dtype=torch.float64)
    torch.testing.assert_close(ends, published, atol=1e-5, rtol=0)


def test_limits_must_be_in_order() -> None:
    with pytest.raises(BadInput, match="below lambda_max"):
        TruncatedCosine(3.0, 3.0)
