"""The vector denoiser: predicts the noise eps in z_u = alpha_u z + sigma_u eps.

`VectorDenoiser` is the network of the paper's table (an MLP U-Net with gated blocks);
`epsilon_loss` trains it; `ancestral` and `solve` draw from it. What the condition and the
time contribute to every block is computed once for a batch, and once for a step.
"""

from __future__ import annotations

__all__ = [
    "Modulation",
    "VectorDenoiser",
    "Weights",
    "epsilon_loss",
]

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from damc.errors import BadInput

Modulation = Sequence[tuple[Tensor, Tensor]]  # for every block its gate and its shift


class Weights(NamedTuple):
    """A denoiser's parameters as its products need them: views, or copies that are faster to
    multiply with. All but the first are lists over its blocks."""

    waves: Tensor
    """2 pi times the random frequencies, ``(d, d // 2)``."""
    inputs: list[Tensor]
    """[W1, W4], ``(inputs, 2 w)``; or W1 and W4 apart, ``(2, inputs, w)``."""
    modulations: list[Tensor]
    """[W2, W3], ``(w, 2 w)``."""
    biases: list[Tensor]
    """[b2, b4], ``(2 w,)``."""
    gated: list[Tensor]
    """b1, ``(w,)``."""
    room: list[tuple[Tensor, Sequence[Tensor]]] | None = None
    """Where products with `inputs` are written, and its halves; None for new memory each time."""

    def laid_out(self, rows: int) -> Weights:
        """Copies for many evaluations without a graph at that many points, with room for results.

        A CPU reads such copies faster than transposed views, and memory that it has just used
        faster than new one. Two threads are busier with one of two products each than with halves
        of one, so for them W1 and W4 lie apart.
        """
        apart = torch.get_num_threads() == 2
        inputs = [torch.stack(m.chunk(2, dim=1)) if apart else m.contiguous() for m in self.inputs]
        whole = [m.new_empty(*m.shape[:-2], rows, m.shape[-1]) for m in inputs]
        halves = [both.unbind() if apart else both.chunk(2, dim=1) for both in whole]
        return self._replace(inputs=inputs, room=list(zip(whole, halves, strict=True)))

    def product(self, block: int, h: Tensor) -> Sequence[Tensor]:
        """W1 h and W4 h of one block; what stood in its room is overwritten."""
        matrix = self.inputs[block]
        if self.room is None:
            return (h @ matrix).chunk(2, dim=-1)
        whole, halves = self.room[block]
        if matrix.ndim == 3:
            torch.bmm(h.expand(2, -1, -1), matrix, out=whole)
        else:
            torch.mm(h, matrix, out=whole)
        return halves


class VectorDenoiser(nn.Module):
    """An MLP U-Net from a noisy z, a time and a condition to the noise in z (the paper's table
    "denoising diffusion network", with the details of its code).

    A block maps h to  y = (W1 h + b1) * sigmoid(W2 c + b2) + W3 c + (W4 h + b4)  with
    c = SiLU(V SiLU([time, condition]) + v). Three blocks go down, one stays, three come up with
    skip connections, and the output is added to z_u (eps^ = z_u + net) unless `residual` is off.

    W1 and W4 are stored as one matrix, W2 and W3 as one, and the V of all blocks as one, so
    that each needs one product; the number of parameters and their initial law are those of
    separate layers.

    Args:
        dim: size of z.
        embedding: size of the condition.
        capacity: width factor f of the paper's ablation; 1 is the paper's network.
        widths: hidden widths of the three levels, before `capacity`.
        time: size of the time embedding.
        residual: eps^ = z_u + net, as in the paper's code; False is eps^ = net.
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
    ) -> None:
        super().__init__()
        if dim < 1 or embedding < 1 or not capacity > 0 or time < 4 or time % 2:
            raise BadInput(
                "dim and embedding must be positive integers, capacity positive and time an even "
                f"number of at least 4, got {dim}, {embedding}, {capacity} and {time}"
            )
        self.dim, self.embedding, self.residual = dim, embedding, residual
        w1, w2, w3 = (max(1, round(width * capacity)) for width in widths)
        self.widths = (w1, w2, w3, w3, w2, w1, dim)
        features = dim + 2 * max(1, dim // 2)
        inputs = (features, w1, w2, w3, w3 + w3, w2 + w2, w1 + w1)

        half = time // 2
        exponents = torch.arange(half, dtype=torch.float64) / (half - 1)
        self.register_buffer("frequencies", 10_000**-exponents, persistent=False)
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.fourier = nn.Parameter(torch.randn(dim, max(1, dim // 2)))
        self.context = nn.Linear(time + embedding, sum(self.widths))
        self.inputs = nn.ModuleList(
            nn.Linear(n, 2 * out) for n, out in zip(inputs, self.widths, strict=True)
        )
        self.modulations = nn.ModuleList(nn.Linear(out, 2 * out, bias=False) for out in self.widths)
        self.gates = nn.ParameterList(
            torch.empty(out).uniform_(-(out**-0.5), out**-0.5) for out in self.widths
        )

    def forward(self, z: Tensor, angle: Tensor, condition: Tensor) -> Tensor:
        """eps^ at noise level ``angle = arctan(sigma / alpha)``.

        Args:
            z: noisy points, ``(B, d)``.
            angle: ``()`` or ``(B,)``.
            condition: ``(B, embedding)``, or ``(1, embedding)`` if all share it.
        """
        weights = self.weights()
        share = self.condition_share(condition) + self.time_share(angle)
        return self.blocks(z, self.modulation(share, weights), weights)

    def weights(self) -> Weights:
        """Views of the parameters for `modulation` and `blocks`."""
        inputs = [layer for layer in self.inputs if isinstance(layer, nn.Linear)]
        biases = [layer.bias.chunk(2) for layer in inputs]
        return Weights(
            waves=2 * math.pi * self.fourier,
            inputs=[layer.weight.t() for layer in inputs],
            modulations=[m.weight.t() for m in self.modulations if isinstance(m, nn.Linear)],
            biases=[torch.cat([b2, b4]) for b2, (_, b4) in zip(self.gates, biases, strict=True)],
            gated=[b1 for b1, _ in biases],
        )

    def condition_share(self, condition: Tensor) -> Tensor:
        """What the condition adds to the context of all blocks, ``(B, sum of widths)``."""
        weight = self.context.weight[:, -self.embedding :]
        return F.linear(F.silu(condition), weight, self.context.bias)

    def time_share(self, angle: Tensor) -> Tensor:
        """What the time adds to the context of all blocks, ``(..., sum of widths)``."""
        phase = angle.double()[..., None] * (1000 / (math.pi / 2)) * self.frequencies.double()
        waves = torch.cat([phase.sin(), phase.cos()], dim=-1).to(self.context.weight.dtype)
        weight = self.context.weight[:, : -self.embedding]
        return F.linear(F.silu(self.time(waves)), weight)

    def modulation(
        self, share: Tensor, weights: Weights, room: Sequence[Tensor | None] = (None,) * 7
    ) -> Modulation:
        """Gate and shift of every block, from the two shares' sum.

        The gate is sigmoid(W2 c + b2). The shift holds all else that h does not change,
        W3 c + b4 + b1 * gate, so that a block is left with one product of h. Without a graph
        everything is done in place, that of `share` included.

        Args:
            share: ``(B, sum of widths)``.
            weights: those of `weights`.
            room: where to write gates and shifts side by side, ``(B, 2 w)`` for every block.
        """
        free = not torch.is_grad_enabled()
        contexts = torch.split(F.silu(share, inplace=free), list(self.widths), dim=-1)
        pairs = []
        for c, matrix, bias, b1, out in zip(
            contexts, weights.modulations, weights.biases, weights.gated, room, strict=True
        ):
            both = torch.mm(c, matrix, out=out).add_(bias)  # faster than a bias inside
            gate, shift = both.chunk(2, dim=-1)
            gate = gate.sigmoid_() if free else gate.sigmoid()
            pairs.append((gate, shift.addcmul_(gate, b1) if free else shift.addcmul(gate, b1)))
        return pairs

    def blocks(self, z: Tensor, modulation: Modulation, weights: Weights) -> Tensor:
        """The U-Net itself: eps^ for z ``(B, d)`` when gates and shifts are known."""

        def block(i: int, h: Tensor) -> Tensor:
            gate, shift = modulation[i]
            scaled, straight = weights.product(i, h)
            return (straight + shift).addcmul_(scaled, gate)

        phase = z @ weights.waves
        h = torch.cat([phase.sin(), phase.cos(), z], dim=-1)
        skips = []
        for i in range(3):
            h = F.leaky_relu_(block(i, h))
            skips.append(h)
        h = block(3, h)
        for i in range(4, 7):
            h = block(i, torch.cat([F.leaky_relu_(h), skips.pop()], dim=-1))
        return h + z if self.residual else h


def epsilon_loss(prediction: Tensor, eps: Tensor) -> Tensor:
    """The paper's denoising loss: the mean over the batch of |eps^ - eps|^2 / 2."""
    return (prediction - eps).square().sum(1).mean() / 2
