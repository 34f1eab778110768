"""Training without a classifier: some points of a batch have their condition taken away."""

from __future__ import annotations

__all__ = ["drop_conditions"]

from collections.abc import Callable

import torch
from torch import Tensor

from damc.randomness import batch_rows, own_rows, whole_batch


def drop_conditions(
    embed: Callable[[Tensor], Tensor],
    null: Callable[[], Tensor],
    x: Tensor,
    p_uncond: float,
    keep: Tensor | None,
    embedded: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Conditions of contexts x ``(B, ...)``, a share `p_uncond` of them null, ``(B, embedding)``.

    A fixed count instead of a coin for each point: the encoder does not run on those that are
    dropped.

    Args:
        embed: the encoder, of contexts to ``(B, embedding)``.
        null: makes the null condition, ``(1, embedding)`` or ``(B, embedding)``.
        x: the contexts.
        p_uncond: the share, between 0 and 1.
        keep: indices of the points that keep their condition; drawn if None.
        embedded: what `embed` gave for x, if it is known already.
        generator: source of all randomness.
    """
    n, coin = len(x), None
    if keep is None:
        # What p_uncond * n has beyond a whole number is the probability that one point more is
        # dropped; it is embedded all the same, as reading its coin would stall a GPU.
        rows, source = batch_rows(n, generator), whole_batch(generator)
        whole, part = divmod(round(p_uncond * rows, 9), 1)
        keep = torch.randperm(rows, generator=source, device=x.device)[int(whole) :]
        if part:
            coin = torch.rand(1, 1, generator=source, device=x.device) < part
        if rows > n:
            # Of the whole batch's kept points this process has no fixed count.
            kept = torch.zeros(rows, 1, dtype=torch.bool, device=x.device)
            kept.index_fill_(0, keep, True)
            if coin is not None:
                kept.index_copy_(0, keep[:1], ~coin)
            missing = null()
            known = embed(x) if embedded is None else embedded
            return torch.where(own_rows(kept, generator), known, missing)
    missing = null().expand(n, -1)
    if not len(keep):
        return missing
    found = embed(x[keep]) if embedded is None else embedded[keep]
    if coin is not None:
        found = torch.cat([torch.where(coin, missing[keep[:1]], found[:1]), found[1:]])
    return missing.index_copy(0, keep, found)
