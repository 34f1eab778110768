"""Heavy tails: coordinates in which chains reach them, and a tilt under which draws are many there.

Where a density falls as a power of the distance, chains in z hardly move: a step is as long there
as in the middle, and the way as long as the distance. In v, with

    z = c + L u(v),    u(v) = b sinh(|v| / b) v / |v|,

the tail falls exponentially, and steps of any adapted kernel cross it (Johnson and Geyer,
"Variable transformation to obtain geometric ergodicity", 2012).

Moments are another matter: of a Student t with 3 degrees, even exact draws tell the variance badly,
because single far ones decide. Draws of p(z) g(z) with

    g(z) = (1 + |u|^2 / d)^(a / 2),    u = L^-1 (z - c),

have heavier tails and weights 1 / g, which are bounded; with a half of the tail's exponent the
weighted squares have a variance where the plain ones have none.
"""

from __future__ import annotations

__all__ = ["HEAVY", "Radial", "Tilted", "tail_index"]

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from damc.density import LogProb, value_and_grad
from damc.kernels.straight import Straight

HEAVY = 0.25
"""The tail index from which on draws have no fourth moment."""


def tail_index(z: Tensor) -> float:
    """The largest of the coordinates' tail indices: P(|z_j| > r) falls as r^(-1/k).

    Hill's estimate from the 2 % farthest points ``(n, d)``. Gaussian tails have k near 0, Cauchy's
    k = 1, and the larger k, the nearer the density is to having no integral.
    """
    size = (z - z.median(0).values).abs()
    top = size.topk(max(10, len(z) // 50), 0).values.clamp(min=1e-300).log()
    return float((top - top[-1]).mean(0).max())


@dataclass(frozen=True)
class Radial(Straight):
    """The map from v to z, both ``(B, d)``.

    Args:
        center: c, ``(d,)``.
        factor: L, lower triangular, ``(d, d)``.
    """

    center: Tensor
    factor: Tensor
    inverse_factor: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        eye = torch.eye(len(self.center), dtype=self.center.dtype, device=self.center.device)
        inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        object.__setattr__(self, "inverse_factor", inverse)

    @staticmethod
    def fit(z: Tensor) -> Radial | None:
        """The map of points ``(n, d)`` by their quantiles, as tails may have no covariance; None if
        they do not spread in every direction."""
        d = z.shape[1]
        some = z[:: max(1, len(z) // 16_384)]
        low, center, high = some.quantile(some.new_tensor([0.16, 0.5, 0.84]), 0)
        sd = (high - low) / 2
        if not bool(((sd > 0) & sd.isfinite()).all()):
            return None
        u = (some - center) / sd
        u = u / (1 + u.square().mean(1, keepdim=True)).sqrt()  # far points count like others
        factor, failed = torch.linalg.cholesky_ex(u.T.cov().view(d, d))
        if bool(failed):
            return None
        factor = factor / factor.norm(dim=1, keepdim=True)  # correlations alone
        return Radial(center, sd[:, None] * factor)

    def whiten(self, z: Tensor) -> Tensor:
        """u, ``(B, d)``."""
        return (z - self.center) @ self.inverse_factor.T

    def __call__(self, v: Tensor) -> Tensor:
        """z."""
        s = self._length(v)
        return self.center + (self._radius(s) / s * v) @ self.factor.T

    def inverse(self, z: Tensor) -> Tensor:
        """v."""
        u = self.whiten(z)
        r = self._length(u)
        return self._b * torch.asinh(r / self._b) / r * u

    def log_det(self, v: Tensor) -> Tensor:
        """log |det dz/dv|, ``(B,)``."""
        s = self._length(v)
        d = v.shape[1]
        slope = torch.cosh(s / self._b).log()
        spread = (d - 1) * (self._radius(s) / s).log()
        return (slope + spread)[:, 0] + self.factor.diagonal().log().sum()

    def pull(self, v: Tensor, grad: Tensor) -> Tensor:
        """The gradient to v of f(z(v)) + log |det dz/dv|, where `grad` is that of f to z."""
        across, along, bend, unit = self._parts(v)
        g = grad @ self.factor
        outward = (g * unit).sum(1, keepdim=True)
        return across * g + ((along - across) * outward + bend) * unit

    def push(self, v: Tensor, pulled: Tensor) -> Tensor:
        """The inverse of `pull`."""
        across, along, bend, unit = self._parts(v)
        g = pulled - bend * unit
        outward = (g * unit).sum(1, keepdim=True)
        g = g / across + (1 / along - 1 / across) * outward * unit
        return g @ self.inverse_factor

    @property
    def _b(self) -> float:
        return math.sqrt(len(self.center))

    @staticmethod
    def _length(v: Tensor) -> Tensor:
        length: Tensor = v.norm(dim=1, keepdim=True).clamp(min=1e-100)
        return length

    def _radius(self, s: Tensor) -> Tensor:
        return self._b * torch.sinh(s / self._b)

    def _parts(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The derivatives of u(v) across and along v, d log det / d|v|, and v / |v|."""
        s, b = self._length(v), self._b
        t = s / b
        across, along = self._radius(s) / s, torch.cosh(t)
        # coth(t) - 1 / t is t / 3 near 0, where the two cancel.
        tangent = torch.where(t < 1e-3, t / 3, 1 / torch.tanh(t) - 1 / t)
        bend = ((v.shape[1] - 1) * tangent + torch.tanh(t)) / b
        return across, along, bend, v / s


@dataclass(frozen=True)
class Tilted:
    """p(z) g(z), and the weights 1 / g that lead back to p.

    Args:
        log_prob: of p.
        map: gives c and L.
        power: a.
    """

    log_prob: LogProb
    map: Radial
    power: float

    def __call__(self, z: Tensor) -> Tensor:
        return self.value_and_grad(z)[0]

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Of the tilted density."""
        value, grad = value_and_grad(self.log_prob, z)
        u = self.map.whiten(z)
        d = z.shape[1]
        slope = self.power / (d + u.square().sum(1, keepdim=True)) * u
        return value - self.log_weights(z), grad + slope @ self.map.inverse_factor

    def log_weights(self, z: Tensor) -> Tensor:
        """-log g, ``(B,)``."""
        return -self.power / 2 * torch.log1p(self.map.whiten(z).square().mean(1))
