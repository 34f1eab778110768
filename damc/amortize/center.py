"""Where posteriors lie and how far they spread, so that a diffusion model need only learn the rest.

A posterior p(z | x) is narrow where x says much about z. A denoiser that starts at N(0, I) for
every x has to learn first where that is, and never gets as precise as a regression.
"""

from __future__ import annotations

__all__ = ["Center"]

import torch
from torch import Tensor, nn


class Center(nn.Module):
    """z = m(x) + L v: a linear layer m on the embedding of x, and one factor L for all x.

    Args:
        embedding: size of the embedding of x.
        dim: size of z.

    Attributes:
        factor: L, lower triangular, ``(d, d)``; the identity until it is set.
    """

    factor: Tensor

    def __init__(self, embedding: int, dim: int) -> None:
        super().__init__()
        self.mean = nn.Linear(embedding, dim)
        self.register_buffer("factor", torch.eye(dim))

    def forward(self, embedded: Tensor) -> Tensor:
        """m(x), ``(B, d)``, of embeddings ``(B, embedding)``."""
        m: Tensor = self.mean(self.features(embedded))
        return m

    def features(self, embedded: Tensor) -> Tensor:
        """What m is linear in, ``(B, embedding)``."""
        return nn.functional.leaky_relu(embedded, 0.2)

    def whiten(self, z: Tensor, embedded: Tensor) -> Tensor:
        """v = L^-1 (z - m(x)), ``(B, d)``."""
        away = (z - self(embedded)).mT
        v: Tensor = torch.linalg.solve_triangular(self.factor, away, upper=False)
        return v.mT

    def place(self, v: Tensor, embedded: Tensor) -> Tensor:
        """z = m(x) + L v of v ``(..., B, d)``."""
        z: Tensor = self(embedded) + v @ self.factor.mT
        return z

    def log_scale(self) -> Tensor:
        """log det L, by which log-densities of v exceed those of z, ``()``."""
        return self.factor.diagonal().log().sum()
