"""The factor of posteriors: exact for a linear decoder."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from damc import Diverged, LatentModel
from damc.learn.curvature import posterior_factor


def linear_model(sigma: float) -> tuple[LatentModel, torch.Tensor]:
    torch.manual_seed(0)
    decoder = nn.Linear(3, 40, bias=False).double()
    with torch.no_grad():
        decoder.weight *= torch.tensor([1.0, 4.0, 0.1])
    return LatentModel(decoder, None, 3, sigma), decoder.weight.detach()


def test_it_is_the_posterior_covariance_of_a_linear_model() -> None:
    """With few probes an estimate; with many it converges at the rate of Monte Carlo."""
    model, w = linear_model(0.5)
    exact = torch.linalg.inv(torch.eye(3).double() + w.mT @ w / 0.25)
    errors = []
    for probes in (4, 400):
        z = torch.randn(64, 3, generator=torch.Generator().manual_seed(1)).double()
        generator = torch.Generator().manual_seed(2)
        factor = posterior_factor(model, z, generator, probes=probes)
        assert factor.equal(factor.tril())
        errors.append(float((factor @ factor.mT - exact).norm() / exact.norm()))
    assert errors[0] < 0.3 and errors[1] < 0.03


def test_a_decoder_that_says_nothing_leaves_the_prior() -> None:
    model, _ = linear_model(1e6)
    factor = posterior_factor(model, torch.zeros(2, 3).double(), None)
    torch.testing.assert_close(factor, torch.eye(3).double(), atol=1e-6, rtol=0)


def test_derivatives_that_are_not_finite_are_told() -> None:
    model, _ = linear_model(1.0)
    nn.init.constant_(next(model.decoder.parameters()), torch.nan)
    with pytest.raises(Diverged, match="the decoder's derivatives are not finite"):
        posterior_factor(model, torch.zeros(2, 3).double(), None)
