"""Drawing from a denoiser: ancestral sampling, and few deterministic steps."""

from __future__ import annotations

__all__ = ["SOLVERS", "ancestral", "flow", "solve"]

import math
from collections.abc import Callable

import torch
from azula import sample as azula_sample
from azula.denoise import Denoiser, DiracPosterior
from azula.noise import Schedule
from torch import Tensor

from damc.errors import BadInput
from damc.noise import normal_like

Epsilon = Callable[[Tensor, int], Tensor]  # (z_u, index of u on the grid) -> eps^


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


def flow(epsilon: Epsilon, z: Tensor, schedule: Schedule, times: Tensor, order: int) -> Tensor:
    """Follows the probability flow from noise at times[0] to times[-1], one evaluation a step.

    In y = z_t / (alpha + sigma) and u = sigma / (alpha + sigma), a noisy point is y = (1 - u) z +
    u eps, and the flow is dy/du = v = eps^ - z^ = (eps^ - y) (alpha + sigma) / alpha. With
    h = u_s - u_t, a step from t to s adds h v: DDIM. The second order adds what the last step
    says of the slope of v, h^2 / 2 (v - v') / h', by the method of Adams and Bashforth.

    Args:
        epsilon: the noise predicted at ``(z, i)``, where i counts along `times`.
        z: noise at ``times[0]``, ``(B, d)``.
        schedule: time to (alpha, sigma).
        times: decreasing, ``(S + 1,)``. Kept on the CPU they cost a GPU no wait.
        order: 1 or 2.
    """
    alpha, sigma = schedule(times.double())
    scale = alpha + sigma
    grid = zip((scale / alpha).tolist(), (sigma / scale).diff().tolist(), strict=False)
    sizes = scale.tolist()
    y: Tensor = z / sizes[0]
    h_last, v_last = math.inf, torch.zeros_like(y)  # nothing is known before the first step
    for i, (k, h) in enumerate(grid):
        v = (epsilon(sizes[i] * y, i) - y).mul_(k)
        slope = h / h_last / 2 if order == 2 else 0.0
        y = y.add_(v, alpha=h * (1 + slope)).add_(v_last, alpha=-h * slope)
        h_last, v_last = h, v
    return y.mul_(sizes[-1])


SOLVERS = ("ddim", "heun", "multistep")
"""Deterministic solvers by name: first order, second order with two evaluations a step, and the
two-step method of Adams and Bashforth on the velocity, which was the most exact of azula's
multistep methods on this schedule at 5 to 40 evaluations."""


def solve(epsilon: Epsilon, z: Tensor, schedule: Schedule, steps: int, solver: str) -> Tensor:
    """Follows the probability flow from noise at time 1 to time 0 in few evaluations.

    "ddim" and "multistep" evaluate the network once a step, "heun" twice. All randomness is in
    the starting noise.

    Args:
        epsilon: the noise predicted at ``(z, i)``, i counting along linspace(1, 0, steps + 1).
        z: standard normal noise, ``(B, d)``.
        schedule: time to (alpha, sigma).
        steps: number of steps.
        solver: a name in `SOLVERS`.
    """
    if solver not in SOLVERS:
        raise BadInput(f"solver must be one of ancestral, {', '.join(SOLVERS)}; got {solver!r}")
    if solver != "heun":
        times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        return flow(epsilon, z, schedule, times, order=2 if solver == "multistep" else 1)
    grid = {"steps": steps, "silent": True, "dtype": torch.float64, "device": z.device}
    end: Tensor = azula_sample.HeunSampler(_OnGrid(epsilon, schedule), **grid)(z)
    return end


class _OnGrid(Denoiser):  # type: ignore[misc]
    """A noise predictor on a fixed time grid, as azula's method of Heun wants it.

    It evaluates along the grid in order, every point but the ends twice, so counting calls gives
    the place on it without reading a time back from the device.
    """

    def __init__(self, epsilon: Epsilon, schedule: Schedule) -> None:
        super().__init__()
        self.epsilon, self.schedule, self.calls = epsilon, schedule, 0

    def forward(self, x_t: Tensor, t: Tensor) -> DiracPosterior:
        i = (self.calls + 1) // 2
        self.calls += 1
        alpha, sigma = self.schedule(t)
        return DiracPosterior(mean=(x_t - sigma * self.epsilon(x_t, i)) / alpha)
