"""The vector denoiser: predicts the noise eps in z_u = alpha_u z + sigma_u eps.

`VectorDenoiser` is the network of the paper's table, an MLP U-Net of gated blocks; `epsilon_loss`
trains it. `damc.fast.packed` holds a copy of it for many evaluations without a graph.
"""

from __future__ import annotations

__all__ = ["Block", "VectorDenoiser", "epsilon_loss"]

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.diffusion.mixture import BlockMixture
from damc.errors import BadInput


class Block(nn.Module):
    """y = (W1 h + b1) * sigmoid(W2 c + b2) + W3 c + (W4 h + b4), where c is the block's context.

    W1 and W4 are one linear layer, and W2 and W3 are one, so that h and c are each multiplied
    once; the number of parameters and their initial distribution are those of separate layers.

    Args:
        inputs: size of h.
        width: size of c and of y.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.w1_w4 = nn.Linear(inputs, 2 * width)  # with the biases b1 and b4
        self.w2_w3 = nn.Linear(width, 2 * width, bias=False)
        self.b2 = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, h: Tensor, c: Tensor) -> Tensor:
        """y, ``(B, width)``, of h ``(B, inputs)`` and c ``(B, width)`` or ``(1, width)``."""
        w1_h, w4_h = self.w1_w4(h).chunk(2, dim=-1)
        w2_c, w3_c = self.w2_w3(c).chunk(2, dim=-1)
        return w1_h * torch.sigmoid(w2_c + self.b2) + w3_c + w4_h  # type: ignore[no-any-return]


class VectorDenoiser(nn.Module):
    """An MLP U-Net from a noisy z, a time and a condition to the noise in z (the paper's table
    "denoising diffusion network", with the details of its code).

    Every block has its context c = SiLU(V SiLU([time, condition]) + v); the V of all blocks are
    rows of one matrix. Three blocks go down, one stays, three come up with skip connections, and
    the output is added to z_u (eps^ = z_u + net) unless `residual` is off.

    Args:
        dim: size of z.
        embedding: size of the condition.
        capacity: width factor f of the paper's ablation; 1 is the paper's network.
        widths: hidden widths of the three levels, before `capacity`.
        time: size of the time embedding.
        residual: eps^ = z_u + net, as in the paper's code; False is eps^ = net.
        fourier: learned frequencies of the sines and cosines of z, by default dim / 2; more of them
            resolve many modes in few dimensions.
        velocity: the network predicts v = alpha eps - sigma z (Salimans and Ho 2022), so that
            eps^ = sigma z_u + alpha net, and begins at zero: the denoiser of N(0, I) data.
        frequency: standard deviation of the initial Fourier frequencies.
        mixture: blocks and components of a `BlockMixture`: eps^ is that of the mixture and what the
            network, which begins at zero, adds to it.
    """

    frequencies: Tensor

    def __init__(
        self,
        dim: int,
        embedding: int = 1024,
        *,
        capacity: float = 1.0,
        widths: Sequence[int] = (128, 256, 256),
        time: int = 128,
        residual: bool = True,
        fourier: int | None = None,
        velocity: bool = False,
        frequency: float = 1.0,
        mixture: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or embedding < 1 or not capacity > 0 or time < 4 or time % 2:
            raise BadInput(
                "dim and embedding must be positive integers, capacity positive and time an even "
                f"number of at least 4, got {dim}, {embedding}, {capacity} and {time}"
            )
        self.dim, self.embedding, self.residual = dim, embedding, residual
        self.velocity = velocity
        self.mixture = None if mixture is None else BlockMixture(dim, *mixture)
        w1, w2, w3 = (max(1, round(width * capacity)) for width in widths)
        self.widths = [w1, w2, w3, w3, w2, w1, dim]
        fourier = max(1, dim // 2) if fourier is None else fourier
        features = dim + 2 * fourier
        inputs = (features, w1, w2, w3, w3 + w3, w2 + w2, w1 + w1)

        half = time // 2
        exponents = torch.arange(half, dtype=torch.float64) / (half - 1)
        self.register_buffer("frequencies", 10_000**-exponents, persistent=False)
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.fourier = nn.Parameter(torch.randn(dim, fourier) * frequency)
        self.context = nn.Linear(time + embedding, sum(self.widths))
        self.blocks = nn.ModuleList(map(Block, inputs, self.widths))
        if velocity or mixture is not None:
            for layer in (self.blocks[-1].w1_w4, self.blocks[-1].w2_w3):
                for weight in layer.parameters():  # type: ignore[union-attr]
                    nn.init.zeros_(weight)

    def forward(self, z: Tensor, angle: Tensor, condition: Tensor) -> Tensor:
        """eps^ at noise level ``angle = arctan(sigma / alpha)``.

        Args:
            z: noisy points, ``(B, d)``.
            angle: ``()`` or ``(B,)``.
            condition: ``(B, embedding)``, or ``(1, embedding)`` if all share it.
        """
        context = F.silu(self.time_projection(angle) + self.condition_projection(condition))
        c = torch.split(context, self.widths, dim=-1)
        phase = 2 * math.pi * z @ self.fourier
        h: Tensor = torch.cat([phase.sin(), phase.cos(), z], dim=-1)
        skips = []
        for i in (0, 1, 2):
            h = F.leaky_relu(self.blocks[i](h, c[i]))
            skips.append(h)
        h = self.blocks[3](h, c[3])
        for i in (4, 5, 6):
            h = self.blocks[i](torch.cat([F.leaky_relu(h), skips.pop()], dim=-1), c[i])
        return self.noise(z, h, angle)

    def noise(self, z: Tensor, h: Tensor, angle: Tensor) -> Tensor:
        """eps^ of the network's output h ``(..., d)``, at points and angles as in `forward`."""
        if self.mixture is not None:
            return self.mixture.noise(z, angle) + h
        if self.velocity:
            alpha, sigma = angle.cos()[..., None].to(z), angle.sin()[..., None].to(z)
            return torch.addcmul(sigma * z, alpha, h)
        return z + h if self.residual else h

    def condition_projection(self, condition: Tensor) -> Tensor:
        """The condition's part of V SiLU([time, condition]) + v, ``(B, sum of widths)``.

        Apart from the time's, it is computed once if all points share a condition, and once for
        all steps of sampling.
        """
        weight = self.context.weight[:, -self.embedding :]
        return F.linear(F.silu(condition), weight, self.context.bias)

    def time_projection(self, angle: Tensor) -> Tensor:
        """The time's part of V SiLU([time, condition]) + v, ``(..., sum of widths)``."""
        wide = torch.float32 if angle.device.type == "mps" else torch.float64  # which it lacks
        phase = angle.to(wide)[..., None] * (1000 / (math.pi / 2)) * self.frequencies.to(wide)
        features = torch.cat([phase.sin(), phase.cos()], dim=-1).to(self.context.weight.dtype)
        weight = self.context.weight[:, : -self.embedding]
        return F.linear(F.silu(self.time(features)), weight)


def epsilon_loss(prediction: Tensor, eps: Tensor) -> Tensor:
    """The paper's denoising loss: the mean over the batch of |eps^ - eps|^2 / 2."""
    return (prediction - eps).square().sum(1).mean() / 2
