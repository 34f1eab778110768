"""Densities of what a denoiser draws: of its probability flow, and along its ancestral paths.

With the angle phi = arctan(sigma / alpha) and s = log tan phi, half of minus the log
signal-to-noise ratio, the flow from clean points to noise and the density along it are

    dz/ds = f(z, s) = sin phi (eps^ - sin phi z),
    log q(z_0) = log N(z_1; 0, I) + integral of div f over s,

the instantaneous change of variables (Chen et al. 2018; Song et al. 2021). In s the flow changes at
an even pace at every noise level, which is what a solver with equal steps needs.

An ancestral path z_S, ..., z_0 from noise to a clean point has a density of its own under the
denoiser, q, and one under the noising of z_0, r(z_1, ..., z_S | z_0). For any target p the weight

    w = p(z_0) r(z_1, ..., z_S | z_0) / q(z_0, ..., z_S)

has mean Z under q, so that it corrects draws of z_0 (Neal 2001; Sohl-Dickstein et al. 2015), and
costs no evaluation of the network beyond those of the draw; see `AncestralPaths`.
"""

from __future__ import annotations

__all__ = ["AncestralPaths", "Epsilon", "flow_log_prob"]

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.errors import Diverged

Epsilon = Callable[[Tensor, Tensor], Tensor]
"""(noisy points ``(N, d)``, angle ``()``) to the noise predicted in each, ``(N, d)``."""

EXACT = 64
"""Up to this many dimensions the divergence is computed exactly, beyond it is estimated."""


def flow_log_prob(
    epsilon: Epsilon,
    z: Tensor,
    angles: tuple[float, float],
    *,
    tolerance: float = 0.05,
    probes: int = 8,
    steps: int = 16,
    most: int = 512,
    generator: torch.Generator | None = None,
) -> Tensor:
    """log q(z), normalized, ``(B,)``: the density of points that the flow leads to from N(0, I).

    The equation is solved by the classical Runge-Kutta method of order 4 with a number of steps
    that doubles until the values change by no more than the tolerance, in root mean square over
    the points: at the kinks of a network's activations single points converge slowly.

    Args:
        epsilon: the denoiser.
        z: points, ``(B, d)``.
        angles: phi at the clean and at the noisy end.
        tolerance: the change of the log-densities, in nats, that ends the doubling.
        probes: random directions of the trace estimator (Hutchinson 1989) beyond `EXACT`
            dimensions; they are the same for all numbers of steps.
        steps: the first number of steps.
        most: the largest one.
        generator: source of the random directions.

    Raises:
        Diverged: if the tolerance is not met with the largest number of steps.
    """
    d = z.shape[1]
    if d <= EXACT:
        directions = torch.eye(d, dtype=z.dtype, device=z.device)
    else:
        signs = torch.empty(probes, d, dtype=z.dtype, device=z.device)
        # Columns of +1 and -1: their squares average to the identity without further noise.
        directions = signs.bernoulli_(0.5, generator=generator).mul_(2).sub_(1) / probes**0.5
    last: Tensor | None = None
    change = math.inf
    while steps <= most:
        value = _integrated(epsilon, z, angles, directions, steps)
        if last is not None:
            change = float((value - last).square().mean().sqrt())
            if change <= tolerance:
                return value
        last, steps = value, 2 * steps
    raise Diverged(
        f"the log-density of the flow still changes by {change:.3g} nats between {most // 2} and "
        f"{most} steps, more than the tolerance of {tolerance:g}"
    )


def _integrated(
    epsilon: Epsilon, z: Tensor, angles: tuple[float, float], directions: Tensor, steps: int
) -> Tensor:
    """The log-density by a fixed number of Runge-Kutta steps."""
    first, last = (math.log(math.tan(angle)) for angle in angles)
    h = (last - first) / steps
    total = torch.zeros_like(z[:, 0])
    for i in range(steps):
        s = first + i * h
        k1, d1 = _flow(epsilon, z, s, directions)
        k2, d2 = _flow(epsilon, z + h / 2 * k1, s + h / 2, directions)
        k3, d3 = _flow(epsilon, z + h / 2 * k2, s + h / 2, directions)
        k4, d4 = _flow(epsilon, z + h * k3, s + h, directions)
        z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        total = total + h / 6 * (d1 + 2 * d2 + 2 * d3 + d4)
    return total - z.square().sum(1) / 2 - z.shape[1] * math.log(2 * math.pi) / 2


def _flow(epsilon: Epsilon, z: Tensor, s: float, directions: Tensor) -> tuple[Tensor, Tensor]:
    """f(z, s), ``(B, d)``, and its divergence, ``(B,)``, along directions ``(K, d)``."""
    k, n, d = len(directions), *z.shape
    angle = math.atan(math.exp(s))
    sine = math.sin(angle)
    at = torch.full((), angle, dtype=z.dtype, device=z.device)
    # Every point with every direction is a row: one pass gives all directional derivatives.
    points = z.repeat_interleave(k, 0)
    tangents = directions.repeat(n, 1)
    eps, derivative = torch.func.jvp(lambda p: epsilon(p, at), (points,), (tangents,))[:2]
    trace = (derivative * tangents).sum(1).view(n, k).sum(1)
    return sine * (eps.view(n, k, d)[:, 0] - sine * z), sine * (trace - d * sine)


@dataclass(frozen=True)
class AncestralPaths:
    """Paths with Gaussian steps between noise levels that are equally spaced in s = log tan phi.

    From the angle phi of one level to that of the next the step is N(m, variance), with the mean m
    of the paper's equation 5. The last step, to a clean point, has a variance too, as a path needs
    a density.

    Args:
        epsilon: the denoiser, from and to float64.
        angles: phi from the noisy to the clean end, ``(S,)``.
        variances: of each step in each dimension, ``(S, d)``.
    """

    epsilon: Epsilon
    angles: Tensor
    variances: Tensor

    @staticmethod
    def fit(
        epsilon: Epsilon,
        v: Tensor,
        angles: tuple[float, float],
        steps: int = 100,
        generator: torch.Generator | None = None,
    ) -> AncestralPaths:
        """Paths with the variances that are best for clean points v ``(n, d)``.

        Given a noisy point, a clean one misses its estimate by (sigma / alpha)^2 E[(eps - eps^)^2]
        in the mean square, which a step adds to the variance of the reverse posterior (Bao et al.,
        Analytic-DPM, 2022).
        """
        first, last = (math.log(math.tan(angle)) for angle in reversed(angles))
        s = torch.linspace(first, last, steps, dtype=torch.float64, device=v.device)
        grid = s.exp().atan()
        alpha, sigma, keep, _ = _levels(grid)
        v, variances = v.double(), []
        for i in range(steps):
            noise = torch.empty_like(v).normal_(generator=generator)
            missed = noise - epsilon(alpha[i] * v + sigma[i] * noise, grid[i])
            unsure = (sigma[i] / alpha[i]).square() * missed.square().mean(0).clamp(min=1e-8)
            if i == steps - 1:
                variances.append(unsure)
                break
            to_clean = (1 - keep[i]) * alpha[i + 1]
            reverse = (1 - keep[i]) * sigma[i + 1].square()
            variances.append(reverse + to_clean.square() * unsure)
        return AncestralPaths(epsilon, grid, torch.stack(variances))

    def draw(self, n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """n clean points, ``(n, d)``, and log r - log q of their paths, ``(n,)``; float64."""
        d = self.variances.shape[1]
        z = torch.empty(n, d, dtype=torch.float64, device=self.angles.device)
        z = z.normal_(generator=generator)
        ratio = -_log_normal(z).sum(1)
        for i in range(len(self.angles)):
            mean, sd = self._mean(z, i), self.variances[i].sqrt()
            w = torch.empty_like(z).normal_(generator=generator)
            new = mean + sd * w
            ratio = ratio + self._noising(new, z, i) - (_log_normal(w) - sd.log()).sum(1)
            z = new
        return z, ratio

    def noised(self, v: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """log r - log q of paths of noising that start at given clean points v, ``(n,)``.

        If the points are draws from p, the mean of log p + this is an upper bound of log Z.
        """
        spread = _levels(self.angles)[3]
        z = v.double()
        ratio = torch.zeros_like(z[:, 0])
        for i in reversed(range(len(self.angles))):
            w = torch.empty_like(z).normal_(generator=generator)
            noisy = self._shrink(i) * z + spread[i] * w
            sd = self.variances[i].sqrt()
            back = (_log_normal((z - self._mean(noisy, i)) / sd) - sd.log()).sum(1)
            ratio = ratio + (_log_normal(w) - spread[i].log()).sum(1) - back
            z = noisy
        return ratio - _log_normal(z).sum(1)

    def _mean(self, z: Tensor, i: int) -> Tensor:
        """The mean of the step that leaves level i."""
        alpha, sigma, keep, _ = _levels(self.angles)
        clean = (z - sigma[i] * self.epsilon(z, self.angles[i])) / alpha[i]
        if i == len(self.angles) - 1:
            return clean
        return keep[i] * alpha[i + 1] / alpha[i] * z + (1 - keep[i]) * alpha[i + 1] * clean

    def _noising(self, clean: Tensor, noisy: Tensor, i: int) -> Tensor:
        """The log-density of noising that takes the cleaner point to the one at level i."""
        spread = _levels(self.angles)[3][i]
        w = (noisy - self._shrink(i) * clean) / spread
        return (_log_normal(w) - spread.log()).sum(1)

    def _shrink(self, i: int) -> Tensor:
        alpha = self.angles.cos()
        return alpha[i] / (alpha[i + 1] if i + 1 < len(alpha) else 1.0)


def _levels(angles: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """alpha, sigma, r = exp(lambda_t - lambda_s) to the next level, and the noising's spread from
    there, sigma sqrt(1 - r); the last level is followed by clean points, for which r = 0."""
    alpha, sigma = angles.cos(), angles.sin()
    ratio = (alpha[:-1] * sigma[1:] / (sigma[:-1] * alpha[1:])).square()
    keep = torch.cat([ratio, ratio.new_zeros(1)])
    return alpha, sigma, keep, sigma * (1 - keep).sqrt()


def _log_normal(w: Tensor) -> Tensor:
    return -w.square() / 2 - math.log(2 * math.pi) / 2
