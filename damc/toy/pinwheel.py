"""The pinwheel: a two-dimensional prior with wound arms whose density is known exactly."""

from __future__ import annotations

__all__ = ["Pinwheel"]

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput


@dataclass(frozen=True)
class Pinwheel:
    """A pinwheel in the plane: Gaussian arms, wound up by a rotation that grows with the radius.

    With the plane read as complex numbers, an arm `k`, `r ~ N(radial_mean, radial_sd^2)` and
    `t ~ N(0, tangential_sd^2)`::

        z = scale * (r + i t) * exp(-i theta)
        theta = 2 pi k / arms + phi(r),    phi(r) = rate * exp(r)

    The map from `(r, t)` to `z` has Jacobian `scale^2 * |J|` with `J = 1 + phi(r) * t`, so::

        p(z) = sum over all (k, r, t) that give z of  N(r) N(t) / (arms * scale^2 * |J|)

    Example:
        >>> import torch
        >>> pinwheel = Pinwheel()
        >>> z = pinwheel.sample(500, torch.Generator().manual_seed(0))
        >>> pinwheel.log_prob(z).shape
        torch.Size([500])
    """

    arms: int = 2
    radial_mean: float = 1.0
    radial_sd: float = 0.3
    tangential_sd: float = 0.1
    rate: float = 0.25
    scale: float = 2.0

    def __post_init__(self) -> None:
        if self.arms < 1 or min(self.radial_sd, self.tangential_sd, self.rate, self.scale) <= 0:
            raise BadInput(f"arms must be at least 1, and sds, rate and scale positive, got {self}")
        if self.tangential_sd > self.radial_sd:
            raise BadInput(
                f"tangential_sd must be at most radial_sd, {self.radial_sd}, "
                f"got {self.tangential_sd}"
            )

    @property
    def exact_radius(self) -> float:
        """Largest `|z|` at which `log_prob` is exact; about 1e-16 of the mass lies outside."""
        return self.scale * (self.radial_mean + 8.2 * self.radial_sd)

    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Draw `n` independent points, (n, 2), on the device of the generator."""
        if n < 1:
            raise BadInput(f"n must be at least 1, got {n}")
        device = None if generator is None else generator.device
        noise = torch.randn(n, 2, generator=generator, dtype=dtype, device=device)
        arm = torch.randint(self.arms, (n,), generator=generator, device=device)
        r = self.radial_mean + self.radial_sd * noise[:, 0]
        t = self.tangential_sd * noise[:, 1]
        theta = arm * (2 * math.pi / self.arms) + self.rate * r.exp()
        c, s = theta.cos(), theta.sin()
        return self.scale * torch.stack([r * c + t * s, t * c - r * s], dim=1)

    def log_prob(self, z: Tensor) -> Tensor:
        """The normalized log-density of `z`, (B, 2) -> (B,), in the dtype of `z`.

        It can be differentiated once. All pre-images are found, so the value is exact, with two
        exceptions that hold no mass to speak of:

        - At the folds `J = 0` the density is infinite (but integrable). `|J|` is floored at 0.2:
          the paper's folds lie 17 nats below the peak, and `|J| < 0.2` has mass 4e-8.
        - Beyond `exact_radius` the arms are wound tighter than any sampler's step; there the
          density is replaced by its mean over the angle (Laplace's approximation), a smooth one.
        """
        if z.ndim != 2 or z.shape[1] != 2 or not z.is_floating_point():
            raise BadInput(
                f"z must be floats of shape (B, 2), got {z.dtype} of shape {tuple(z.shape)}"
            )
        value: Tensor = _PinwheelLogProb.apply(z, self)  # type: ignore[no-untyped-call]
        return value


_FLOOR = 0.2


class _PinwheelLogProb(torch.autograd.Function):
    """Value and gradient in one go: a graph over the root-finding would cost several times more."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, pinwheel: Pinwheel) -> Tensor:
        value, gradient = _value_and_gradient(pinwheel, z.detach())
        ctx.save_for_backward(z, gradient)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        z, gradient = ctx.saved_tensors
        slope: Tensor = _NoSecondDerivative.apply(z, gradient)  # type: ignore[no-untyped-call]
        return upstream[:, None] * slope, None


class _NoSecondDerivative(torch.autograd.Function):
    """Passes the gradient on; asked for its own, raises: a missing term would go unseen."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, gradient: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError("Pinwheel.log_prob has no second derivatives")


def _value_and_gradient(p: Pinwheel, z: Tensor) -> tuple[Tensor, Tensor]:
    """`log p(z)`, (B,), and its gradient, (B, 2).

    Write `z / scale = rho * exp(i a)` and a pre-image as `r + i t = rho * exp(i psi)`. Then `psi`
    solves `G(psi) = psi - phi(rho cos psi) = a` up to multiples of `2 pi / arms`, and `G' = J`.
    """
    w = z / p.scale
    rho = torch.hypot(w[:, 0], w[:, 1])
    a = torch.atan2(w[:, 1], w[:, 0])
    limit = p.exact_radius / p.scale
    point, psi = _roots(p, rho.clamp(max=limit), a)

    radius = rho.take(point)
    r, t = radius * psi.cos(), radius * psi.sin()
    phi = p.rate * r.exp()
    jacobian = 1 + phi * t
    size = jacobian.abs()
    inverse = torch.where(size < _FLOOR, jacobian.sign() / _FLOOR, 1 / jacobian)
    log_weight = (r - p.radial_mean).square() / (-2 * p.radial_sd**2)
    log_weight = log_weight - t.square() / (2 * p.tangential_sd**2) - size.clamp(min=_FLOOR).log()
    top = torch.full_like(rho, -math.inf).scatter_reduce(0, point, log_weight, "amax")
    weight = (log_weight - top.take(point)).exp()
    total = torch.zeros_like(rho).index_add(0, point, weight)
    cells = p.arms * 2 * math.pi * p.radial_sd * p.tangential_sd * p.scale**2
    value = top + total.log() - math.log(cells)

    # Implicit function theorem, with u = exp(i (psi - a)) the rotation that takes w to r + i t:
    #   dr = Re[u dw] / J,   dt = Im[u dw] + phi r dr,   dJ = phi (t dr + dt).
    log_jacobian = torch.where(size < _FLOOR, 0, phi * inverse)
    by_t = t / (-(p.tangential_sd**2)) - log_jacobian
    by_r = (r - p.radial_mean) / (-(p.radial_sd**2)) - log_jacobian * t
    along, across = (by_r + by_t * phi * r) * inverse, by_t
    turn = psi - a.take(point)
    c, s = turn.cos(), turn.sin()
    slope = torch.stack([along * c + across * s, across * c - along * s], dim=1)
    slope = slope * (weight / (p.scale * total.take(point)))[:, None]
    gradient = torch.zeros_like(z).index_add(0, point, slope)

    far = rho > limit
    if bool(far.any()):
        # The mean over the angle is the integral of N(r) N(t) / (2 pi scale^2) over psi, here by
        # Laplace at psi = 0.
        u = rho[far]
        past = u - p.radial_mean
        width = u.square() / p.tangential_sd**2 - u * past / p.radial_sd**2
        peak = past.square() / (-2 * p.radial_sd**2) - 0.5 * (2 * math.pi * width).log()
        value[far] = peak - math.log(cells / p.arms)
        width_slope = 2 * u / p.tangential_sd**2 - (u + past) / p.radial_sd**2
        radial = past / (-(p.radial_sd**2)) - 0.5 * width_slope / width
        gradient[far] = (radial / (u * p.scale))[:, None] * w[far]
    return value, gradient


def _roots(p: Pinwheel, rho: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """All solutions `psi` of `G(psi) = a mod 2 pi / arms`, with the index of the point of each.

    `G` has a minimum next to `psi = 0`, the fold. The nodes of the scan gather around it and one
    lies on it, so no two roots of weight share a cell. There is always a root, because
    `G(pi) = G(-pi) + 2 pi`.
    """
    gap = 2 * math.pi / p.arms
    v = torch.linspace(-1, 1, 2 * _nodes(p) + 1, dtype=rho.dtype, device=rho.device)
    u = v * (0.3 + 0.7 * v.abs())
    fold = torch.zeros_like(rho)
    for _ in range(3):
        # J = 0 reads sin(psi) = -exp(-rho cos psi) / (rate rho); below 0.5 this settles fast.
        sine = (-rho * (1 - fold.square()).sqrt()).exp() / (p.rate * rho)
        fold = sine.clamp(max=0.5)
    fold = -fold.asin()
    # In place: fresh memory for every (B, nodes) result would cost more than the arithmetic.
    psi = torch.addcmul(math.pi * u, fold[:, None], 1 - u.abs())
    height = psi.cos().mul_(rho[:, None]).exp_().mul_(-p.rate).add_(psi).sub_(a[:, None])
    level = height.mul(1 / gap).floor_()
    # True by periodicity; rounding may say otherwise when a root sits on the seam.
    level[:, -1] = level[:, 0] + p.arms
    point, cell = (level[:, 1:] != level[:, :-1]).nonzero(as_tuple=True)

    left = point * len(u) + cell
    right = left + 1
    start, stop = psi.take(left), psi.take(right)
    level_start, level_stop = level.take(left), level.take(right)
    rising = level_stop > level_start
    target = torch.maximum(level_start, level_stop) * gap
    below, above = torch.where(rising, start, stop), torch.where(rising, stop, start)
    miss_start, miss_stop = height.take(left) - target, height.take(right) - target
    root = start + (miss_start / (miss_start - miss_stop)).clamp(0, 1) * (stop - start)
    target, radius = target + a.take(point), rho.take(point)
    tolerance = torch.finfo(rho.dtype).eps ** 0.5 / 4
    for _ in range(40):
        r = radius * root.cos()
        phi = p.rate * r.exp()
        miss = root - phi - target
        jacobian = 1 + phi * radius * root.sin()
        low = miss < 0
        below, above = torch.where(low, root, below), torch.where(low, above, root)
        newton = root - miss / jacobian
        # Newton where it stays between the ends, bisection where not.
        inside = (newton - below) * (newton - above) <= 0
        root = torch.where(inside, newton, 0.5 * (below + above))
        if not bool((miss.abs() > tolerance * jacobian.abs().clamp(min=_FLOOR)).any()):
            break
    return point, root


def _nodes(p: Pinwheel) -> int:
    """Nodes on each side of the fold so that `G` refines less than one level in a cell."""
    limit = p.exact_radius / p.scale
    steepest = 1 + p.rate * math.exp(limit) * limit / 2
    return max(16, math.ceil(steepest * p.arms / 2))
