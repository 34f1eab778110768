"""A few draws that stand for many: strata along the log-density, balanced in the tails.

Of heavy-tailed draws a handful of the outermost hold much of the variance, and which of them a
random choice keeps decides what variance is seen. So one draw is kept of every stratum of equal
size along the log-density, and in the outer strata the one that keeps the first and second moments
of what was kept so far closest to those of all draws there ("balanced sampling", Deville and Tille
2004).
"""

from __future__ import annotations

__all__ = ["thin"]

import torch
from torch import Tensor

_TAIL = 0.05  # share of the strata that are balanced


def thin(
    z: Tensor,
    value: Tensor,
    keep: int,
    generator: torch.Generator | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Indices of the draws that are kept, ``(R, keep)``, in random order.

    Args:
        z: draws of R islands, ``(R, M, d)``.
        value: their log-densities, ``(R, M)``.
        keep: how many of each island; more than there are repeats some.
        generator: source of all randomness.
        weight: of the draws, ``(R, M)``, with mean 1, if they are not equal.
    """
    islands, many = value.shape
    u = torch.rand(islands, 1, generator=generator, dtype=value.dtype, device=value.device)
    rank = (torch.arange(keep, device=value.device) + u) * (many / keep)
    order = value.argsort(1)  # the tails first
    index = order.gather(1, rank.long().clamp(max=many - 1))
    size = many // keep
    if size > 1:
        outer = max(1, round(_TAIL * keep))
        strata = order[:, : outer * size].view(islands, outer, size)
        index[:, :outer] = _balanced(
            z, strata, torch.ones_like(value) if weight is None else weight
        )
    shuffle = torch.rand(islands, keep, generator=generator, device=value.device).argsort(1)
    return index.gather(1, shuffle)


def _balanced(z: Tensor, strata: Tensor, weight: Tensor) -> Tensor:
    """One draw of each stratum, ``(R, k)``, of indices ``(R, k, size)``; the outermost first."""
    mass = weight[..., None]
    center = (mass * z).mean(1, keepdim=True)
    scale = (mass * (z - center).square()).mean(1, keepdim=True).sqrt().clamp(min=1e-300)
    island = torch.arange(len(z), device=z.device)
    owed = z.new_zeros(len(z), 1, 1 + 2 * z.shape[2])  # moments not yet represented
    chosen = []
    for stratum in strata.unbind(1):
        w = (z[island[:, None], stratum] - center) / scale
        share = mass[island[:, None], stratum]
        moments = share * torch.cat([torch.ones_like(share), w, w.square()], 2)
        owed = owed + moments.mean(1, keepdim=True)
        best = (owed - moments).square().sum(2).argmin(1)
        owed = owed - moments[island, best][:, None]
        chosen.append(stratum[island, best])
    return torch.stack(chosen, 1)
