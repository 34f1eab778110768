"""The density of what a denoiser's probability flow draws.

With the angle phi = arctan(sigma / alpha) and s = log tan phi, half of minus the log
signal-to-noise ratio, the flow from clean points to noise and the density along it are

    dz/ds = f(z, s) = sin phi (eps^ - sin phi z),
    log q(z_0) = log N(z_1; 0, I) + integral of div f over s,

the instantaneous change of variables (Chen et al. 2018; Song et al. 2021). In s the flow changes at
an even pace at every noise level, which is what a solver with equal steps needs.
"""

from __future__ import annotations

__all__ = ["flow_log_prob"]

import math
from collections.abc import Callable

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
