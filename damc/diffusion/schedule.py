"""The noise schedule of the diffusion model: how much of z is left at time u.

z_u = alpha_u z + sigma_u eps with alpha^2 + sigma^2 = 1. The paper trains on the log
signal-to-noise ratio lambda(u) = log(alpha_u^2 / sigma_u^2) of a cosine schedule cut off at
both ends; the cut-offs are those of its code (the paper does not print them).
"""

from __future__ import annotations

__all__ = ["Schedule", "TruncatedCosine"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from damc.errors import BadInput

Schedule = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From times to (alpha, sigma), each of the shape of the times."""


class TruncatedCosine:
    """alpha_u = cos(a u + b), sigma_u = sin(a u + b), for u in [0, 1].

    The angle runs from ``lambda_max`` at u = 0 (almost clean) to ``lambda_min`` at u = 1
    (almost noise), and lambda(u) = -2 log tan(a u + b).

    Example:
        >>> TruncatedCosine().log_snr(torch.tensor([0.0, 0.5, 1.0]))
        tensor([ 9.8000,  0.1411, -5.1000])
    """

    def __init__(self, lambda_min: float = -5.1, lambda_max: float = 9.8) -> None:
        if not lambda_min < lambda_max:
            raise BadInput(
                f"lambda_min must be below lambda_max, got {lambda_min} and {lambda_max}"
            )
        self.lambda_min, self.lambda_max = lambda_min, lambda_max
        self.b = math.atan(math.exp(-lambda_max / 2))
        self.a = math.atan(math.exp(-lambda_min / 2)) - self.b

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The scales of signal and noise, (alpha_u, sigma_u), of the shape of u."""
        angle = self.angle(u)
        return torch.cos(angle), torch.sin(angle)

    def angle(self, u: Tensor) -> Tensor:
        """a u + b, which is arctan(sigma_u / alpha_u)."""
        return self.a * u + self.b

    def log_snr(self, u: Tensor) -> Tensor:
        """lambda(u) = log(alpha_u^2 / sigma_u^2)."""
        return -2 * torch.log(torch.tan(self.angle(u)))
