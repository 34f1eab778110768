"""Sampling with a denoiser: from noise to points, at the steps of a solver, with guidance."""

from __future__ import annotations

__all__ = ["denoise"]

from collections.abc import Callable

import torch
from torch import Tensor

from damc.diffusion.denoiser import VectorDenoiser
from damc.diffusion.sampling import ancestral, solve
from damc.diffusion.schedule import TruncatedCosine
from damc.fast.gradients import is_plain
from damc.fast.packed import PackedDenoiser


def denoise(
    net: VectorDenoiser,
    schedule: TruncatedCosine,
    noise: Tensor,
    condition: Tensor,
    null: Tensor | None,
    *,
    steps: int,
    solver: str,
    gamma: float,
    guidance: float,
    generator: torch.Generator | None,
) -> Tensor:
    """Points that the denoiser makes of noise, ``(..., d)``.

    Args:
        net: the denoiser.
        schedule: its noise levels.
        noise: N(0, I), ``(..., d)``.
        condition: of the points, ``(B, embedding)``, or ``(1, embedding)`` for all.
        null: the condition that guidance leads away from; None without guidance.
        steps: evaluations of the denoiser.
        solver: "ancestral", or one of `damc.diffusion.sampling.SOLVERS`.
        gamma: noise exponent of ancestral sampling.
        guidance: w in eps^ = (1 + w) eps^(condition) - w eps^(null).
        generator: source of the noise of ancestral steps.
    """
    times = torch.linspace(1, 0, steps, dtype=torch.float64)
    if solver != "ancestral":
        times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)[:-1]
    angles = schedule.angle(times).to(condition.device)
    predict = _predictor(net, condition, angles, noise.shape[:-1])
    if null is not None and guidance:
        conditional = predict
        unconditional = _predictor(net, null, angles, noise.shape[:-1])

        def predict(z: Tensor, i: int) -> Tensor:
            return torch.lerp(unconditional(z, i), conditional(z, i), 1 + guidance)

    if solver == "ancestral":
        return ancestral(predict, noise, schedule, times, gamma=gamma, generator=generator)
    return solve(predict, noise, schedule, steps, solver)


def _predictor(
    net: VectorDenoiser, condition: Tensor, angles: Tensor, points: torch.Size
) -> Callable[[Tensor, int], Tensor]:
    """eps^ of points ``(*points, d)`` at each angle of a grid."""
    mixed = torch.is_autocast_enabled(condition.device.type)  # knows nothing of buffers
    if type(net) is VectorDenoiser and all(map(is_plain, net.modules())) and not mixed:
        return PackedDenoiser(net, condition, angles, points)
    return lambda z, i: net(z, angles[i], condition)
