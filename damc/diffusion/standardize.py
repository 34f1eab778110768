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
    """

    location: Tensor
    factor: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("location", torch.zeros(dim))
        self.register_buffer("factor", torch.eye(dim))

    @torch.no_grad()
    def fit(self, z: Tensor) -> None:
        """Learns m and L from points z, ``(N, d)``."""
        points = z.double()
        centered = points - points.mean(0)
        covariance = centered.mT @ centered / max(1, len(z) - 1)
        # A floor under every direction, so that few or degenerate points have a factor, too.
        floor = (1e-6 * covariance.diagonal().mean()).clamp_min(1e-12)
        jitter = floor * torch.eye(z.shape[1], dtype=points.dtype, device=points.device)
        self.location.copy_(points.mean(0))
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
