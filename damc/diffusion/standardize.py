"""Location and scale of a diffusion model's data, so that the network sees unit scale."""

from __future__ import annotations

__all__ = ["Standardize"]

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """v = L^-1 (z - m), with m and L learned from points and kept with the weights.

    Args:
        dim: size of z.

    Attributes:
        location: m, ``(d,)``.
        factor: L, lower triangular, a factor of the points' covariance L L^T, ``(d, d)``.
        seen: how many points `follow` was given, ``()``.
    """

    location: Tensor
    factor: Tensor
    seen: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("location", torch.zeros(dim))
        self.register_buffer("factor", torch.eye(dim))
        self.register_buffer("seen", torch.zeros(()))

    @torch.no_grad()
    def fit(self, z: Tensor) -> None:
        """Learns m and L from points z, ``(N, d)``."""
        points = z.double()
        centered = points - points.mean(0)
        self._set(points.mean(0), centered.mT @ centered / max(1, len(z) - 1))

    @torch.no_grad()
    def follow(self, z: Tensor, horizon: int) -> None:
        """Moves m and L towards points z ``(N, d)``: averages over about the last `horizon` points.

        It begins at N(0, I), which counts as d points: fewer have no covariance.
        """
        points, location = z.double(), self.location.double()
        before = (self.seen.double() + len(location)).clamp(max=float(max(1, horizon - len(z))))
        rate = len(z) / (before + len(z))
        shift = points - location
        step = rate * shift.mean(0)
        covariance = (1 - rate) * (self.factor.double() @ self.factor.double().mT)
        covariance = covariance + rate * (shift.mT @ shift) / len(z) - step[:, None] * step
        self._set(location + step, covariance)
        self.seen += len(z)

    def _set(self, location: Tensor, covariance: Tensor) -> None:
        # A floor under every direction, so that few or degenerate points have a factor, too.
        floor = (1e-6 * covariance.diagonal().mean()).clamp_min(1e-12)
        jitter = floor * torch.eye(len(location), dtype=location.dtype, device=location.device)
        self.location.copy_(location)
        self.factor.copy_(torch.linalg.cholesky(covariance + jitter))

    def forward(self, z: Tensor) -> Tensor:
        """v of z ``(B, d)``."""
        centered = (z - self.location).mT
        v: Tensor = torch.linalg.solve_triangular(self.factor, centered, upper=False)
        return v.mT

    def inverse(self, v: Tensor) -> Tensor:
        """z of v ``(..., d)``."""
        return v @ self.factor.mT + self.location

    def log_scale(self) -> Tensor:
        """log det L, by which log-densities of v exceed those of z, ``()``."""
        return self.factor.diagonal().log().sum()
