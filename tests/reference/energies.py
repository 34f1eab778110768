"""Energies whose answer is known without computing it."""

from __future__ import annotations

__all__ = ["Zero"]

import torch
from torch import Tensor, nn


class Zero(nn.Module):
    """An energy fixed at zero, whose gradient passes through it all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, z: Tensor) -> Tensor:
        return z.sum(1) * 0 + self.unused * 0
