"""Gaussian posteriors N(m, diag v): a draw that gradients pass through, and its divergence."""

from __future__ import annotations

__all__ = ["divergence", "draw"]

import torch
from torch import Tensor

from damc.randomness import normal_like


def draw(m: Tensor, log_v: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """z = m + v^(1/2) w with w ~ N(0, I), through which gradients pass, ``(B, d)``."""
    return torch.addcmul(m, (log_v / 2).exp(), normal_like(m, generator))


def divergence(m: Tensor, log_v: Tensor) -> Tensor:
    """KL(N(m, diag v) || N(0, I)), ``(B,)``.

    Example:
        >>> divergence(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2))
        tensor([2.])
    """
    return (m.square() + log_v.exp() - 1 - log_v).sum(1) / 2
