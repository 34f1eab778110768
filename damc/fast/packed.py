"""A denoiser packed for many evaluations without a graph: the same points along a time grid.

All that does not depend on z is computed beforehand, weights lie in memory as products read them
fastest, and products are written into buffers that are used again at every step.
"""

from __future__ import annotations

__all__ = ["Denoiser", "PackedDenoiser"]

import math
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_ROWS = 1024  # gates and shifts made in one product: few enough for the caches
_PAYS = 1000  # evaluations of single points from which on copies of the weights pay


class Denoiser(Protocol):
    """What is read of a `damc.diffusion.denoiser.VectorDenoiser`."""

    widths: list[int]
    fourier: nn.Parameter
    blocks: nn.ModuleList

    def time_projection(self, angle: Tensor) -> Tensor: ...
    def condition_projection(self, condition: Tensor) -> Tensor: ...
    def noise(self, z: Tensor, h: Tensor, angle: Tensor) -> Tensor: ...


class _Block(NamedTuple):
    """y = W1 h * gate + W4 h + shift, with gate = sigmoid(W2 c + b2) and shift = W3 c + b4 + b1 *
    gate: one product of h is left, and all else is known before z is."""

    w1_w4: Tensor  # W1 and W4 apart, (2, inputs, w): two threads then take one product each
    w2_w3: Tensor  # (w, 2 w)
    b2_b4: Tensor  # (2 w,)
    b1: Tensor  # (w,)
    product: Tensor  # buffer of W1 h and W4 h, (2, number of points, w)
    w1_h: Tensor  # its halves, (*points, w)
    w4_h: Tensor
    modulation: Tensor  # buffer of [gate, shift] at several steps, (steps, rows of conditions, 2 w)
    pairs: list[tuple[Tensor, ...]]  # its halves at each of the steps


class PackedDenoiser:
    """eps^ of points ``(*points, d)`` at each angle of a grid, as the denoiser is now.

    Args:
        net: the denoiser.
        condition: ``(rows, embedding)``, rows being the last size of `points`, or 1.
        angles: the grid, ``(S,)``.
        points: sizes of the batch of points.
    """

    def __init__(
        self, net: Denoiser, condition: Tensor, angles: Tensor, points: torch.Size
    ) -> None:
        self.widths, self.noise, self.angles = net.widths, net.noise, angles
        self.frequencies = 2 * math.pi * net.fourier.detach()
        self.of_condition = net.condition_projection(condition)
        self.of_time = net.time_projection(angles)
        # Gates and shifts are made for several steps in one product, since small ones are slow:
        # for all steps if the points share one condition.
        rows = len(condition)
        self.steps = min(len(angles), max(1, _ROWS // rows))
        copied = points.numel() * len(angles) > _PAYS
        self.blocks = [_pack(block, points, self.steps, rows, copied) for block in net.blocks]
        self.known = -1  # the part of the grid that the buffers of modulations hold

    def __call__(self, z: Tensor, i: int) -> Tensor:
        """eps^ at ``angles[i]``, of z ``(*points, d)``."""
        part, place = divmod(i, self.steps)
        if part != self.known:
            self.modulate(part)
            self.known = part
        return self.noise(z, self.evaluate(z, place), self.angles[i])

    def modulate(self, part: int) -> None:
        """Gates and shifts of all blocks at the steps of one part of the grid."""
        times = self.of_time[part * self.steps : (part + 1) * self.steps, None]
        context = F.silu((self.of_condition + times).flatten(0, 1), inplace=True)
        for c, block in zip(torch.split(context, self.widths, dim=1), self.blocks, strict=True):
            both = block.modulation[: len(times)].flatten(0, 1)
            torch.mm(c, block.w2_w3, out=both).add_(block.b2_b4)  # faster than a bias inside
            gate, shift = both.chunk(2, dim=1)
            shift.addcmul_(gate.sigmoid_(), block.b1)

    def evaluate(self, z: Tensor, place: int) -> Tensor:
        """The U-Net with gates and shifts of the step at this place in their buffers."""

        def block(i: int, h: Tensor) -> Tensor:
            b = self.blocks[i]
            gate, shift = b.pairs[place]
            torch.bmm(h.flatten(0, -2).expand(2, -1, -1), b.w1_w4, out=b.product)
            return (b.w4_h + shift).addcmul_(b.w1_h, gate)

        phase = z @ self.frequencies
        h = torch.cat([phase.sin(), phase.cos(), z], dim=-1)
        skips = []
        for i in (0, 1, 2):
            h = F.leaky_relu_(block(i, h))
            skips.append(h)
        h = block(3, h)
        for i in (4, 5, 6):
            h = block(i, torch.cat([F.leaky_relu_(h), skips.pop()], dim=-1))
        return h


def _pack(block: nn.Module, points: torch.Size, steps: int, rows: int, copied: bool) -> _Block:
    w1_w4, w2_w3, b2 = block.w1_w4, block.w2_w3, block.b2
    assert isinstance(w1_w4, nn.Linear) and isinstance(w2_w3, nn.Linear) and isinstance(b2, Tensor)
    b1, b4 = w1_w4.bias.detach().chunk(2)
    width = len(b1)
    columns = w1_w4.weight.detach().view(2, width, -1).transpose(1, 2)
    product = columns.new_empty(2, *points, width)
    modulation = columns.new_empty(steps, rows, 2 * width)
    w1_h, w4_h = product.unbind()
    return _Block(
        columns.contiguous() if copied else columns,
        w2_w3.weight.detach().t(),
        torch.cat([b2.detach(), b4]),
        b1,
        product.flatten(1, -2),
        w1_h,
        w4_h,
        modulation,
        [step.chunk(2, dim=-1) for step in modulation],
    )
