"""Coordinates that straighten funnels and bananas: some variables rule others.

In hierarchical models a few variables, the drivers, rule how widely the others spread, and no one
step size fits both the neck and the mouth; in curved ones they rule where the others are. From
points of such a density, `LocationScale` learns

    z_i = m_i + A_i z_D + B_i z_D^2 + exp(s_i + S_i z_D) v_i

for every variable i that is not one of the drivers D, by linear regression of z_i on the drivers
and their squares, and of log |residual| on the drivers. In the coordinates v, with the Jacobian,
the density is close to round, and any kernel moves as on a Gaussian. This is the non-centered form
of a model, found from its samples.
"""

from __future__ import annotations

__all__ = ["LocationScale"]

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.kernels.straight import Straight

_CLEAR = 0.12  # share of the variance of log |residual| that a driver must explain
_WORTH = 0.1  # nats by which points must be likelier in the new coordinates
_MOST = 8  # drivers


@dataclass(frozen=True)
class LocationScale(Straight):
    """The map from v to z, both ``(B, d)``.

    Args:
        drivers: which variables are, bool, ``(d,)``.
        shift: m, ``(d,)``; 0 for drivers, as are the rows below.
        slope: A, ``(d, d)``, only in the columns of drivers.
        curve: B, ``(d, d)``, only in the columns of drivers.
        log_scale: s, ``(d,)``.
        tilt: S, ``(d, d)``, only in the columns of drivers.
    """

    drivers: Tensor
    shift: Tensor
    slope: Tensor
    curve: Tensor
    log_scale: Tensor
    tilt: Tensor

    def __call__(self, v: Tensor) -> Tensor:
        """z."""
        return self._location(v) + self._log_scale(v).exp() * v

    def inverse(self, z: Tensor) -> Tensor:
        """v; drivers are the same in both."""
        return (z - self._location(z)) * (-self._log_scale(z)).exp()

    def log_det(self, v: Tensor) -> Tensor:
        """log |det dz/dv|, ``(B,)``."""
        return self._log_scale(v).sum(1)

    def pull(self, v: Tensor, grad: Tensor) -> Tensor:
        """The gradient to v of f(z(v)) + log |det dz/dv|, where `grad` is that of f to z."""
        spread = self._log_scale(v).exp()
        return spread * grad + self._through(v, grad, spread)

    def push(self, v: Tensor, pulled: Tensor) -> Tensor:
        """The inverse of `pull`."""
        spread = self._log_scale(v).exp()
        grad = torch.where(self.drivers, 0.0, pulled / spread)
        return torch.where(self.drivers, pulled - self._through(v, grad, spread), grad)

    @staticmethod
    def fit(z: Tensor) -> LocationScale | None:
        """The map of points ``(n, d)``; None where no variable clearly sets another's scale."""
        n, d = z.shape
        if d < 2 or n < 20 * min(d, 50):
            return None
        # Quantiles, since the mouth of a funnel has heavy tails.
        some = z[:: max(1, n // 4096)]
        low, center, high = some.quantile(some.new_tensor([0.16, 0.5, 0.84]), 0)
        sd = (high - low) / 2
        if not bool(((sd > 0) & sd.isfinite()).all()):
            return None
        u = (z - center) / sd
        chosen = _drivers(u)
        if not chosen:
            return None
        drivers = torch.zeros(d, dtype=torch.bool, device=z.device)
        drivers[chosen] = True
        k, one = len(chosen), torch.ones_like(u[:, :1])
        linear = torch.cat([one, u[:, chosen]], 1)
        design = torch.cat([linear, u[:, chosen].square()], 1)
        location, spread = u.new_zeros(1 + 2 * k, d), u.new_zeros(1 + k, d)
        # Points weigh in the location by how narrow the density is there; the first guess has no
        # location at all (as in a funnel) or one scale for all (as in a banana).
        best = (-math.inf, location, spread)
        for weighted in (True, False):
            weight = u.new_ones(d, n, 1)
            for step in range(4):
                if step or not weighted:
                    fitted = torch.linalg.lstsq(weight * design, weight * u.T[..., None]).solution
                    location = fitted[..., 0].T
                else:
                    location = torch.zeros_like(location)
                log_size = _log_size(u - design @ location)
                spread = torch.linalg.lstsq(linear, log_size).solution
                weight = (-linear @ spread).exp().clamp(max=1e3).T[..., None]  # (d, n, 1)
            # A driver that tells nothing about a scale is left out of it.
            gain = spread[1:].square() * u[:, chosen].var(0)[:, None] / log_size.var(0)
            spread[1:] = torch.where(gain > _CLEAR / 4, spread[1:], 0.0)
            score = -float((_log_size(u - design @ location).mean(0))[~drivers].sum())
            if score > best[0]:
                best = (score, location, spread)
        _, location, spread = best
        location[:, drivers] = spread[:, drivers] = 0.0
        slope, curve, tilt = z.new_zeros(3, d, d)
        # In units of z: u_D = (z_D - c) / sd_D, and its square.
        c, unit = center[chosen], sd[chosen]
        bent = location[1 + k :].T * sd[:, None] / unit.square()
        curve[:, chosen] = bent
        slope[:, chosen] = location[1 : 1 + k].T * sd[:, None] / unit - 2 * bent * c
        tilt[:, chosen] = spread[1:].T / unit
        shift = center + location[0] * sd - slope @ center - curve @ center.square()
        log_scale = spread[0] - tilt @ center + sd.log()
        shift[drivers] = log_scale[drivers] = 0.0
        found = LocationScale(drivers, shift, slope, curve, log_scale, tilt)
        return found if found._gain(z) > _WORTH else None

    def _gain(self, z: Tensor) -> float:
        """How much likelier the points are, in nats each, if v is Gaussian than if z is."""
        v = self.inverse(z)
        volume = [torch.linalg.slogdet(x.T.cov())[1] / 2 for x in (z, v)]
        return float(volume[0] - volume[1] - self.log_det(v).mean())

    def _through(self, v: Tensor, grad: Tensor, spread: Tensor) -> Tensor:
        """The part of the gradient that reaches the drivers through the others."""
        bent = 2 * v * (grad @ self.curve)
        return grad @ self.slope + bent + (grad * spread * v + 1) @ self.tilt

    def _location(self, z: Tensor) -> Tensor:
        return self.shift + z @ self.slope.T + z.square() @ self.curve.T

    def _log_scale(self, z: Tensor) -> Tensor:
        return self.log_scale + z @ self.tilt.T


def _drivers(u: Tensor) -> list[int]:
    """Variables that tell how far others are from their centers, or bend them; the best first."""
    log_size = _log_size(u)
    u = u.clamp(-5.0, 5.0)  # a few far points must not decide
    bent = u.square() - _linear(u, u.square())
    explained = torch.maximum(
        _correlation(u, log_size).square(), _correlation(bent, u).square()
    ).fill_diagonal_(0.0)  # (driver, driven)
    strength = torch.where(explained > _CLEAR, explained, 0.0).sum(1)
    chosen: list[int] = []
    for j in strength.argsort(descending=True).tolist()[:_MOST]:
        driven = max((float(explained[k, j]) for k in chosen), default=0.0)
        if float(strength[j]) > 0 and driven < _CLEAR:
            chosen.append(j)
    return chosen


def _linear(x: Tensor, y: Tensor) -> Tensor:
    """The part of each column of y that is linear in the same column of x."""
    x0, y0 = x - x.mean(0), y - y.mean(0)
    return y.mean(0) + x0 * (x0 * y0).sum(0) / x0.square().sum(0).clamp(min=1e-300)


def _log_size(residual: Tensor) -> Tensor:
    # Bounded below, since log |r| of a residual that happens to be tiny is an outlier.
    return residual.abs().clamp(min=1e-12).log()


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Correlations of the columns of a with those of b, ``(d, d)``."""
    a, b = a - a.mean(0), b - b.mean(0)
    norm: Tensor = a.norm(dim=0)[:, None] * b.norm(dim=0)
    return a.T @ b / norm.clamp(min=1e-300)
