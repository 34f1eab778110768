"""Drawing from a denoiser: ancestral sampling, and few deterministic steps."""

from __future__ import annotations

__all__ = ["SOLVERS", "ancestral", "ddim", "multistep", "solve"]

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from damc.diffusion.schedule import Schedule
from damc.errors import BadInput
from damc.randomness import normal_like

Epsilon = Callable[[Tensor, int], Tensor]  # (z_u, index of u on the grid) -> eps^
Velocity = Callable[[Tensor, int], Tensor]  # (y, index of u on the grid) -> dy / du


def ancestral(
    epsilon: Epsilon,
    z: Tensor,
    schedule: Schedule,
    times: Tensor,
    *,
    gamma: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws by the paper's equation 5, from noise at times[0] to a clean point.

    From time t to s < t, with r = exp(lambda_t - lambda_s) and z^ = (z_t - sigma_t eps^) / alpha_t,

        z_s = r (alpha_s / alpha_t) z_t + (1 - r) alpha_s z^ + sd eps,
        sd^2 = ((1 - r) sigma_s^2)^(1 - gamma) ((1 - r) sigma_t^2)^gamma,

    and the last evaluation's z^ is returned without noise. gamma = 0 is the reverse posterior's
    variance ("small"), gamma = 1 the forward one ("large", the choice of the paper's code).

    Args:
        epsilon: the noise predicted at ``(z, i)``, where i counts along `times`.
        z: noise at ``times[0]``, ``(B, d)``.
        schedule: time to (alpha, sigma).
        times: decreasing, ``(S,)``; S is the number of evaluations. Kept on the CPU they cost a
            GPU no wait.
        gamma: noise exponent in [0, 1].
        generator: source of all randomness.
    """
    if not 0 <= gamma <= 1:
        raise BadInput(f"gamma must lie in [0, 1], got {gamma}")
    alpha, sigma = schedule(times.double())
    r = (alpha[:-1] * sigma[1:] / (sigma[:-1] * alpha[1:])) ** 2
    # The mean is linear in z_t and eps^; both coefficients are known before the first step.
    to_eps = -(1 - r) * alpha[1:] * sigma[:-1] / alpha[:-1]
    to_z = alpha[1:] / alpha[:-1]
    sd = ((1 - r) * sigma[1:] ** (2 * (1 - gamma)) * sigma[:-1] ** (2 * gamma)).sqrt()
    steps = zip(to_z.tolist(), to_eps.tolist(), sd.tolist(), strict=True)
    for i, (k_z, k_eps, k_noise) in enumerate(steps):
        eps = epsilon(z, i)
        z = torch.add(k_z * z, eps, alpha=k_eps)
        z = z.add_(normal_like(z, generator), alpha=k_noise)
    last_alpha, last_sigma = alpha.tolist()[-1], sigma.tolist()[-1]
    clean: Tensor = (z - last_sigma * epsilon(z, len(times) - 1)) / last_alpha
    return clean


def solve(epsilon: Epsilon, z: Tensor, schedule: Schedule, steps: int, solver: str) -> Tensor:
    """Follows the probability flow from noise at time 1 to time 0 in few evaluations.

    In y = z_t / (alpha + sigma) and u = sigma / (alpha + sigma), a noisy point is
    y = (1 - u) z + u eps, and the flow is

        dy/du = v(y, u) = eps^ - z^ = (eps^ - y) (alpha + sigma) / alpha.

    All randomness is in the starting noise.

    Args:
        epsilon: the noise predicted at ``(z, i)``, i counting along linspace(1, 0, steps + 1); it
            is not asked at the end of the grid.
        z: standard normal noise, ``(B, d)``.
        schedule: time to (alpha, sigma).
        steps: number of steps, each with one evaluation of the network.
        solver: a name in `SOLVERS`.
    """
    if solver not in SOLVERS:
        raise BadInput(f"solver must be one of ancestral, {', '.join(SOLVERS)}; got {solver!r}")
    # On the CPU, where reading the numbers costs a GPU no wait.
    alpha, sigma = schedule(torch.linspace(1, 0, steps + 1, dtype=torch.float64))
    scale, to_v = (alpha + sigma).tolist(), ((alpha + sigma) / alpha).tolist()

    def velocity(y: Tensor, i: int) -> Tensor:
        return (epsilon(scale[i] * y, i) - y).mul_(to_v[i])

    u = (sigma / (alpha + sigma)).tolist()
    return SOLVERS[solver](velocity, z / scale[0], u).mul_(scale[-1])


def ddim(v: Velocity, y: Tensor, u: Sequence[float]) -> Tensor:
    """Euler's method, order 1: y_s = y_t + h v_t with h = u_s - u_t.

    Song et al., "Denoising Diffusion Implicit Models", ICLR 2021.
    """
    for i in range(len(u) - 1):
        y = torch.add(y, v(y, i), alpha=u[i + 1] - u[i])
    return y


def multistep(v: Velocity, y: Tensor, u: Sequence[float]) -> Tensor:
    """The method of Adams and Bashforth, order 2 with one evaluation a step: what the last step of
    size h' says of the slope of v joins in,  y_s = y_t + h v_t + h^2 / 2 (v_t - v') / h'.

    The first step, before which nothing is known, is Euler's.
    """
    h_last, v_last = 1.0, None
    for i in range(len(u) - 1):
        h, v_here = u[i + 1] - u[i], v(y, i)
        slope = 0.0 if v_last is None else h / h_last / 2
        y = torch.add(y, v_here, alpha=h * (1 + slope))
        if v_last is not None:
            y = y.add_(v_last, alpha=-h * slope)
        h_last, v_last = h, v_here
    return y


SOLVERS = {"ddim": ddim, "multistep": multistep}
"""Deterministic solvers of the probability flow, by name. Methods with several evaluations a step,
such as Heun's, are no match for the multistep method at equal evaluations on this schedule."""
