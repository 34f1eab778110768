"""Where the chains of `damc.distill` start, and with which contexts."""

from __future__ import annotations

__all__ = ["AmortizerProposal", "Pairs", "batches_of", "starts_of"]

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from damc.amortize.amortizer import Amortizer
from damc.density import Target, as_log_prob
from damc.errors import BadInput

Pairs = tuple[Tensor, Tensor] | Callable[[int, torch.Generator | None], tuple[Tensor, Tensor]]
"""Points and their contexts, ``(N, d)`` and ``(N, ...)``, or a simulator of n such pairs."""


@dataclass(frozen=True)
class AmortizerProposal:
    """q(z | x) with one draw for each row of x, or q(z), as a proposal for `damc.Independence`.

    Args:
        q: the amortizer.
        x: contexts, ``(B, ...)``; None for q(z).
        sampling: arguments of `Amortizer.sample`; a deterministic solver, as its density is that
            of the probability flow.
        tolerance: of the log-density, in nats.
    """

    q: Amortizer
    x: Tensor | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.2

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Points, ``(n, d)``; with contexts n is how many there are."""
        if self.x is None:
            return self.q.sample(n, **self.sampling, generator=generator)
        return self.q.sample(x=self.x[:n], **self.sampling, generator=generator)

    def log_prob(self, z: Tensor) -> Tensor:
        """Normalized log-density of points, one for each context, ``(B, d)`` to ``(B,)``."""
        x = None if self.x is None else self.x[: len(z)]
        return self.q.log_prob(z, x, tolerance=self.tolerance)


def starts_of(
    proposal: AmortizerProposal,
    batch: int,
    fresh: float,
    given: Tensor | None,
    own: Tensor | None,
    target: Target,
    candidates: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Points of q, and a share of others: points of the given ones, of the pairs, or of N(0, I)."""
    weight = proposal.q.denoiser.fourier
    n = batch if proposal.x is None else len(proposal.x)
    if own is not None:
        z = own.to(weight, copy=True)
    elif given is None:
        shape = (n, proposal.q.dim)
        z = torch.randn(shape, generator=generator, dtype=weight.dtype, device=weight.device)
    else:
        device = given.device if generator is None else generator.device
        which = torch.randint(len(given), (n,), generator=generator, device=device)
        z = given[which.to(given.device)].to(weight)
    amortized = n - round(fresh * n)
    if not amortized:
        return z
    if candidates == 1:
        z[:amortized] = proposal.sample(amortized, generator)
        return z
    # Of all n points, so that the target can go on with its contexts; those not wanted are left.
    drawn = torch.stack([proposal.sample(n, generator) for _ in range(candidates)])
    log_prob = as_log_prob(target)
    with torch.no_grad():
        log_weights = torch.stack([log_prob(part) - proposal.log_prob(part) for part in drawn])
    log_weights = log_weights.nan_to_num(-math.inf, -math.inf, -math.inf)
    u = torch.rand(log_weights.shape, generator=generator, device=weight.device)
    # The largest log-weight with Gumbel noise is a draw in proportion to the weights.
    taken = (log_weights - (-u.clamp(min=1e-30).log()).log()).argmax(0)
    z[:amortized] = drawn[taken, torch.arange(n, device=weight.device)][:amortized]
    return z


def batches_of(
    contexts: Iterable[Tensor] | Tensor | None,
    pairs: Pairs | None,
    batch: int,
    dim: int,
    generator: torch.Generator | None,
) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Contexts, and the points that belong to them, if there are any."""
    if callable(pairs):
        while True:
            z, x = pairs(batch, generator)
            _check_pairs(z, x, dim)
            yield x, z
    elif pairs is not None:
        z, x = pairs
        _check_pairs(z, x, dim)
        for where in _rows(len(x), batch, x.device, generator):
            yield x[where], z[where.to(z.device)]
    elif contexts is None:
        yield from itertools.repeat((None, None))
    elif isinstance(contexts, Tensor):
        for where in _rows(len(contexts), batch, contexts.device, generator):
            yield contexts[where], None
    else:
        while True:
            empty = True
            for x in contexts:
                empty = False
                yield x, None
            if empty:
                raise BadInput("the contexts ended: give an iterable that can be started again")


def _rows(
    total: int, batch: int, device: torch.device, generator: torch.Generator | None
) -> Iterator[Tensor]:
    while True:
        home = device if generator is None else generator.device
        yield torch.randint(total, (batch,), generator=generator, device=home).to(device)


def _check_pairs(z: Tensor, x: Tensor, dim: int) -> None:
    if z.ndim != 2 or z.shape[1] != dim or len(x) != len(z) or not len(z):
        raise BadInput(
            f"pairs must be z of shape (N, {dim}) and as many x, got {tuple(z.shape)} and "
            f"{tuple(x.shape)}"
        )
