"""`damc.sample` with a context: one sampler of the posteriors of all observations.

For a target log p(z, x) there is one posterior p(z | x) for every observation x. A Gaussian that is
regressed on x takes place and scale out of it (`damc.sampling.whiten`), and `damc.distill` teaches
an amortizer what is left. Sampling the posterior of a new observation then takes about a second;
see `damc.sampling.posterior`.
"""

from __future__ import annotations

__all__ = ["amortize"]

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from damc.amortize import distill
from damc.density import Target, value_and_grad
from damc.errors import BadInput, Diverged
from damc.kernels.base import State
from damc.kernels.hmc import HMC
from damc.kernels.mover import Budget, Mover, Possible, possible
from damc.randomness import derive_seed, global_seed
from damc.sampling.observations import Conditional, Context, as_conditional, as_context
from damc.sampling.posterior import AmortizedPosterior
from damc.sampling.stored import networks
from damc.sampling.supports import as_support
from damc.sampling.whiten import Whiten

_BATCH = 512
_UPDATES = 2  # of q for every batch of pairs
_ITERATIONS = 600  # batches of pairs
_LEAPFROGS = 3  # of the kernel that moves them
_POOL = 4096  # chains where only observations are known
_MOVES = 150  # of those, before anything learns from them
_KEPT = 4096  # pairs that the posterior keeps, to know where points and observations lie


def amortize(
    log_prob: Target,
    dim: int,
    context: Any,
    *,
    support: Any = None,
    seed: int = 0,
    minutes: float = 5.0,
    gradients: int | None = None,
    iterations: int = _ITERATIONS,
    progress: bool = False,
) -> AmortizedPosterior:
    """A sampler of p(z | x) for every x, from its unnormalized log-density log p(z, x).

    `damc.sample` calls it when a context is given.

    Args:
        log_prob: z ``(B, dim)`` and x ``(B, ...)`` to ``(B,)``, in torch operations.
        dim: size of z.
        context: what to learn from. Best is a simulator ``(n, generator) -> (z, x)`` of the model's
            own prior and likelihood, as its pairs are exact posterior draws; pairs made by it, two
            tensors z ``(N, dim)`` and x ``(N, ...)``, are as good if they are many; observations x
            alone, ``(N, ...)``, are enough where chains find the posterior's modes by themselves.
        support: of z; see `damc.sample`.
        seed: of everything random.
        minutes: approximate limit on the time.
        gradients: approximate limit on gradients of the log-density, counted for each point.
        iterations: batches of pairs to learn from.
        progress: show a progress bar.

    Raises:
        BadInput: if an argument is not what it must be.
        Diverged: if log_prob is finite at too few of the pairs.
    """
    if not isinstance(dim, int) or dim < 1:
        raise BadInput(f"dim must be a positive whole number, got {dim!r}")
    if not minutes > 0 or iterations < 1:
        raise BadInput(f"minutes and iterations must be positive, got {minutes} and {iterations}")
    bijection = as_support(support, dim)
    generator = torch.Generator().manual_seed(seed)
    budget = Budget(seconds=60 * minutes)
    free = dim if bijection is None else bijection.free
    if gradients is not None:
        iterations = max(1, min(iterations, gradients // (_BATCH * (1 + _LEAPFROGS))))
    source = as_context(context, dim, bijection, generator)
    target = as_conditional(log_prob, dim, source, bijection, generator)
    exact = source.simulate is not None
    if source.observations is not None:
        pairs = _found_by_chains(source.observations, target, free, budget, generator)
        source = replace(source, pairs=pairs)
    if source.pairs is not None:
        source = replace(source, simulate=_Chains(target, *source.pairs, budget).simulate)
    u, x = source.draw(_KEPT, generator)
    usable = possible(lambda u: target(u, x), u)[0].isfinite()
    if float(usable.double().mean()) < 0.5:
        raise Diverged(
            f"log_prob is finite at only {int(usable.sum())} of {len(u)} pairs (z, x): they must "
            "belong to the same model"
        )
    with global_seed(derive_seed(seed, "weights")):
        whiten, q = networks(free, source.size)
    _regress(whiten, source, iterations, budget, generator)

    def whitened(n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        assert generator is not None
        u, x = source.draw(n, generator)
        with torch.no_grad():
            return whiten(u, x), x

    history = distill(
        q,
        _Whitened(target, whiten),
        HMC(0.3, steps=1, leapfrogs=_LEAPFROGS),
        pairs=whitened,
        iterations=iterations,
        batch=_BATCH,
        updates=_UPDATES,
        p_uncond=0.0,
        learning_rate=1e-3,
        ema=0.02,
        # A simulator's pairs are exact; others may hold few observations and poorly mixed points.
        fresh=1.0 if exact else 0.5,
        sampling={"steps": 8},
        minutes=max(1e-3, minutes - budget.elapsed / 60),
        generator=generator,
        progress=progress,
    )
    spent = budget.spent + history.gradient_calls
    return AmortizedPosterior(target, q, whiten, u, x, history, spent, seed)


def _regress(
    whiten: Whiten, source: Context, updates: int, budget: Budget, generator: torch.Generator
) -> None:
    """Fits N(m(x), L(x) L(x)^T) to pairs by maximum likelihood."""
    whiten.fit_linear(*source.draw(_KEPT, generator))
    optimizer = torch.optim.Adam(whiten.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        loss = whiten.loss(*source.draw(_BATCH, generator))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(whiten.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        if budget.elapsed > 0.2 * budget.seconds:
            break
    if not bool(loss.isfinite()):
        raise Diverged(f"the regression of points on their observations has the loss {loss:.3g}")
    whiten.requires_grad_(False)


def _found_by_chains(
    observations: Tensor, target: Conditional, free: int, budget: Budget, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Pairs where only observations are known: the ends of chains from N(0, I), one for each."""
    rows = torch.randperm(max(len(observations), _POOL), generator=generator)[:_POOL]
    x = observations[rows % len(observations)]
    u = torch.randn(len(x), free, dtype=torch.float64, generator=generator)
    for _ in range(20):  # starts that are impossible are drawn again, nearer to the center
        bad = possible(lambda u: target(u, x), u)[0] == -torch.inf
        if not bool(bad.any()):
            break
        u = torch.where(bad[:, None], 0.7 * u.roll(1, 0), u)
    chains = _Chains(target, u, x, budget)
    for _ in range(_MOVES // 10):
        chains.move(torch.arange(len(u)), 10, generator)
        if budget.elapsed > 0.3 * budget.seconds:
            break
    return chains.u, x


class _Chains:
    """Pairs whose points go on moving, so that none of them is learned by heart.

    Args:
        target: log p(z, x).
        u, x: the pairs, ``(N, free)`` and ``(N, k)``.
        budget: what is spent is counted there.
    """

    def __init__(self, target: Conditional, u: Tensor, x: Tensor, budget: Budget) -> None:
        self.target, self.u, self.x, self.budget = target, u.clone(), x, budget
        self.mover = Mover(HMC(1.0, leapfrogs=5, target_acceptance=None), step_size=0.1)

    def move(self, rows: Tensor, moves: int, generator: torch.Generator) -> None:
        """Moves some of the chains."""
        x = self.x[rows]
        target = Possible(lambda u: self.target(u, x))
        u = self.u[rows]
        if len(rows) == len(self.u) or self.mover.kernel.scale is None:
            self.mover.adapt(self.u)
        state = State(u, *target.value_and_grad(u))
        state, _ = self.mover.move(
            state, target, (moves, moves), self.budget, generator, adapt=False
        )
        self.u[rows] = state.z

    def simulate(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n pairs, moved a little since they were last drawn."""
        drawn = torch.randint(len(self.u), (n,), generator=generator)
        rows: Tensor = drawn.unique()  # type: ignore[no-untyped-call]
        self.move(rows, 2, generator)
        again = rows[torch.arange(n) % len(rows)]
        return self.u[again], self.x[again]


@dataclass(frozen=True)
class _Whitened:
    """log p of v = L(x)^-1 (u - m(x)), up to what depends on x alone.

    Points that are impossible have a value below all others and are drawn to the center, so that
    chains may start there.
    """

    target: Conditional
    whiten: Whiten

    def log_prob(self, v: Tensor, x: Tensor) -> Tensor:
        return self.value_and_grad(v, x)[0]

    def value_and_grad(self, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, factor = (part.to(torch.float64) for part in self.whiten.frame(x))
        u = mean + (factor @ v.to(torch.float64)[..., None])[..., 0]
        value, grad = value_and_grad(lambda u: self.target(u, x), u)
        grad = (factor.mT @ grad[..., None])[..., 0]
        usable = value.isfinite() & grad.isfinite().all(1)
        value = torch.where(usable, value, -1e9 - v.square().sum(1))
        return value.to(v), torch.where(usable[:, None], grad, -2.0 * v).to(v)
