"""Where annealing starts: a heavy-tailed distribution somewhat wider than given points."""

from __future__ import annotations

__all__ = ["Reference"]

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from damc.kernels.funnels import LocationScale
from damc.kernels.mover import covariance_factor

_DEGREES = 5  # of freedom: tails that no target with a variance outruns by much


@dataclass(frozen=True)
class Reference:
    """A multivariate Student t, in straightened coordinates if a funnel was found.

    Args:
        mean: location, ``(d,)``.
        factor: L, lower triangular, ``(d, d)``: the scale matrix is L L^T.
        funnel: the coordinates v in which it is a Student t; those of z itself if None.
        degrees: of freedom; None is the Gaussian.
    """

    mean: Tensor
    factor: Tensor
    funnel: LocationScale | None = None
    degrees: int | None = _DEGREES
    inverse: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        eye = torch.eye(len(self.mean), dtype=self.mean.dtype, device=self.mean.device)
        inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        object.__setattr__(self, "inverse", inverse)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``."""
        d = len(self.mean)
        w = self.mean.new_empty(n, d).normal_(generator=generator)
        if self.degrees is not None:
            chi = self.mean.new_empty(n, self.degrees).normal_(generator=generator)
            w = w / chi.square().mean(1, keepdim=True).sqrt()
        v = self.mean + w @ self.factor.T
        return v if self.funnel is None else self.funnel(v)

    def log_prob(self, z: Tensor) -> Tensor:
        """Normalized log-density, ``(B, d)`` to ``(B,)``."""
        v, log_det = self._straight(z)
        return self._density(((v - self.mean) @ self.inverse.T).square().sum(1)) - log_det

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Normalized log-density and its gradient to z."""
        v, log_det = self._straight(z)
        w = (v - self.mean) @ self.inverse.T
        q = w.square().sum(1)
        nu, d = self.degrees, len(self.mean)
        force = 1.0 if nu is None else ((nu + d) / (nu + q))[:, None]
        grad = -force * (w @ self.inverse)
        if self.funnel is not None:
            # log p(v) = log p(z) + log |det dz/dv|: the very relation that `push` inverts.
            grad = self.funnel.push(v, grad)
        return self._density(q) - log_det, grad

    @staticmethod
    def fit(z: Tensor, widen: float = 1.5, degrees: int | None = _DEGREES) -> Reference | None:
        """A reference around points ``(n, d)``, wider by a factor; None if they are degenerate.

        The widening fades in high dimension, where it costs more than it covers.
        """
        funnel = LocationScale.fit(z)
        v = z if funnel is None else funnel.inverse(z)
        factor = covariance_factor(v)
        if factor is None:
            return None
        factor = torch.diag(factor) if factor.ndim == 1 else factor
        widen = 1 + (widen - 1) * min(1.0, math.sqrt(10 / z.shape[1]))
        return Reference(v.mean(0), widen * factor, funnel, degrees)

    def _straight(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.funnel is None:
            return z, z.new_zeros(())
        v = self.funnel.inverse(z)
        return v, self.funnel.log_det(v)

    def _density(self, q: Tensor) -> Tensor:
        nu, d = self.degrees, len(self.mean)
        log_volume = self.factor.diagonal().abs().log().sum()
        if nu is None:
            return -q / 2 - log_volume - d / 2 * math.log(2 * math.pi)
        constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
        return constant - log_volume - (nu + d) / 2 * torch.log1p(q / nu)
