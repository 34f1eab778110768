"""The paper's sampler written down plainly, one equation after the other.

Nothing is merged, shared or remembered: every step computes the condition's and the time's part of
every block again for every sample. It takes the weights of a `damc.Amortizer`, so that the fast
path can be held against it in time and in outcome.
"""

from __future__ import annotations

__all__ = ["denoise", "sample"]

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from damc.amortize import Amortizer
from damc.diffusion.denoiser import VectorDenoiser


def denoise(net: VectorDenoiser, z: Tensor, angle: Tensor, condition: Tensor) -> Tensor:
    """eps^ by the block equations.

    Args:
        net: whose weights are used.
        z: noisy points, ``(B, d)``.
        angle: arctan(sigma / alpha) of each, ``(B,)``.
        condition: ``(B, embedding)``.
    """
    frequencies = torch.exp(-math.log(10_000) * torch.arange(64, dtype=torch.float64) / 63)
    phase = angle.double()[:, None] / (math.pi / 2) * 1000 * frequencies
    time = net.time(torch.cat([phase.sin(), phase.cos()], 1).to(z.dtype))
    context = F.silu(torch.cat([time, condition], 1))
    row = 0

    def block(i: int, h: Tensor) -> Tensor:
        nonlocal row
        out = net.widths[i]
        where = slice(row, row := row + out)
        c = F.silu(F.linear(context, net.context.weight[where], net.context.bias[where]))
        (w1, w4), (b1, b4) = net.blocks[i].w1_w4.weight.chunk(2), net.blocks[i].w1_w4.bias.chunk(2)
        w2, w3 = net.blocks[i].w2_w3.weight.chunk(2)
        gate = torch.sigmoid(F.linear(c, w2, net.blocks[i].b2))
        return F.linear(h, w1, b1) * gate + F.linear(c, w3) + F.linear(h, w4, b4)

    phase = 2 * math.pi * z @ net.fourier
    h = torch.cat([phase.sin(), phase.cos(), z], 1)
    h1 = block(0, h)
    h2 = block(1, F.leaky_relu(h1, 0.01))
    h3 = block(2, F.leaky_relu(h2, 0.01))
    h = block(3, F.leaky_relu(h3, 0.01))
    for i, skip in ((4, h3), (5, h2), (6, h1)):
        h = block(i, F.leaky_relu(torch.cat([h, skip], 1), 0.01))
    return z + h


@torch.no_grad()
def sample(q: Amortizer, condition: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Ancestral sampling with gamma = 1, the update written as in the paper's equation 5.

    Args:
        q: whose weights and schedule are used.
        condition: ``(B, embedding)``.
        steps: evaluations of the denoiser.
        generator: source of all randomness.
    """
    n, dtype = len(condition), condition.dtype
    z = torch.randn(n, q.dim, generator=generator, dtype=dtype)
    for i in range(steps - 1, -1, -1):
        t = torch.full((n, 1), i / max(steps - 1, 1), dtype=torch.float64)
        alpha_t, sigma_t = (a.to(dtype) for a in q.schedule(t))
        eps = denoise(q.denoiser, z, q.schedule.angle(t)[:, 0], condition)
        clean = (z - sigma_t * eps) / alpha_t
        if i == 0:
            break
        s = torch.full((n, 1), (i - 1) / (steps - 1), dtype=torch.float64)
        alpha_s = q.schedule(s)[0].to(dtype)
        r = torch.exp(q.schedule.log_snr(t) - q.schedule.log_snr(s)).to(dtype)
        mean = r * (alpha_s / alpha_t) * z + (1 - r) * alpha_s * clean
        noise = torch.randn(n, q.dim, generator=generator, dtype=dtype)
        z = mean + torch.sqrt((1 - r) * sigma_t**2) * noise
    return clean
