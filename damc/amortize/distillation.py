"""`distill` makes a sampler out of a Markov kernel: the paper's equation 6,

    q_k <- argmin_q KL(K_T q_{k-1} || q).

Start chains at the sampler, move them T steps of the kernel K, train the sampler on where they
end, and repeat.
"""

from __future__ import annotations

__all__ = ["amortizer_step", "distill"]

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from damc.amortize.amortizer import Amortizer
from damc.amortize.ema import EMA
from damc.amortize.history import History
from damc.amortize.proposals import AmortizerProposal, Pairs, batches_of, starts_of
from damc.density import Target, as_log_prob
from damc.errors import BadInput, Diverged
from damc.kernels.base import Kernel, State
from damc.kernels.independence import Independence


def amortizer_step(
    q: Amortizer,
    z: Tensor,
    x: Tensor | None = None,
    *,
    step: Callable[[Tensor], Tensor],
    updates: int = 6,
    p_uncond: float = 0.2,
    unconditional: str = "share",
    encoder_updates: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """M gradient steps of the amortizer towards points z, the ends of chains (equation 7).

    Args:
        q: the amortizer; it is trained in place.
        z: points to learn, ``(B, d)``.
        x: their contexts, ``(B, ...)``; without them q(z) alone learns.
        step: one step of the caller's optimizer down a loss; returns the gradient's norm.
        updates: M.
        p_uncond: share of the batch that is trained without its condition.
        unconditional: "share" trains q(z | x) and q(z) on the two parts of the batch that
            `p_uncond` makes; "both" trains each of them on the whole batch and adds the losses.
        encoder_updates: number of updates, the last ones, in which the encoder learns; the others
            share one pass through it. None: all.
        generator: source of all randomness.

    Returns:
        The last loss and the last gradient norm, both ``()`` and detached.
    """
    if updates < 1 or (encoder_updates is not None and encoder_updates < 0):
        raise BadInput(
            "updates must be at least 1 and encoder_updates not negative, "
            f"got {updates} and {encoder_updates}"
        )
    if unconditional not in ("share", "both"):
        raise BadInput(f"unconditional must be 'share' or 'both', got {unconditional!r}")
    shares = (0.0, 1.0) if unconditional == "both" and x is not None else (p_uncond,)
    known, frozen = None, 0  # updates in which the encoder does not learn
    if x is not None and encoder_updates is not None and encoder_updates < updates:
        frozen = updates - encoder_updates
        with torch.no_grad():
            known = q.embed(x)
    for k in range(updates):
        embedded = known if k < frozen else None
        loss = z.new_zeros(())
        for p in shares:
            loss = loss + q.loss(z, x, p_uncond=p, embedded=embedded, generator=generator)
        norm = step(loss)
    return loss.detach(), norm.detach()


def distill(
    q: Amortizer,
    target: Target,
    kernel: Kernel,
    *,
    iterations: int,
    contexts: Iterable[Tensor] | Tensor | None = None,
    pairs: Pairs | None = None,
    batch: int = 500,
    steps: int | None = None,
    updates: int = 6,
    p_uncond: float = 0.2,
    learning_rate: float = 5e-4,
    weight_decay: float = 1e-4,
    ema: float = 0.1,
    fresh: float = 0.0,
    warm: bool = False,
    starts: Tensor | None = None,
    candidates: int = 1,
    proposals: int = 0,
    sampling: dict[str, Any] | None = None,
    clip: float = 100.0,
    minutes: float | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
    callback: Callable[[int, Amortizer], None] | None = None,
) -> History:
    """Amortizes a kernel's long-run chain: the paper's equations 6 and 7 for any target.

    Each iteration starts `batch` chains at the EMA copy of q, moves them by the kernel, and
    makes `updates` gradient steps of q towards where they end. At the end q takes over the
    weights of the EMA copy, the average over the last iterations.

    Args:
        q: the amortizer; it is trained in place.
        target: ``log_prob(z)``, or ``log_prob(z, x)`` if there are contexts.
        kernel: the Markov kernel; `MALA` with adaptation keeps its step size across iterations.
        iterations: how often to sample, move and learn.
        contexts: batches of x, any iterable (started again when it ends), or one tensor
            ``(N, ...)`` from which batches are drawn.
        pairs: points with their contexts instead of contexts alone: tensors z ``(N, d)`` and x
            ``(N, ...)``, or a simulator ``(n, generator) -> (z, x)``. The chains of the first
            iteration, and later the share `fresh`, then start at the z of their own x. Pairs of a
            Bayesian model's prior and likelihood are exact posterior draws, so that ``fresh=1``
            learns from nothing else; the kernel's moves correct what is not exact.
        batch: chains an iteration (with an iterable of contexts, its batches decide).
        steps: T, the kernel's own number by default; with 0 the chains stay where q put them,
            and q is taught nothing but itself.
        updates: M, gradient steps an iteration.
        p_uncond: share of each batch trained without its context.
        learning_rate: of AdamW; falls to zero along a cosine.
        weight_decay: of AdamW.
        ema: rate of the EMA copy that starts the chains, moved once an iteration.
        fresh: share of the chains that start at N(0, I) instead of at q.
        warm: start the first iteration's chains at q, too. By default all of those start at
            N(0, I), since an untrained q says nothing.
        starts: points ``(N, d)`` from which the chains of the first iteration start instead of
            N(0, I), and later the share `fresh`: pilot draws, or particles of `damc.anneal`. An
            amortizer made with ``standardize=True`` is standardized by them, or by the ends of the
            first iteration's chains.
        candidates: draws of q that compete for each start, the one taken with a probability in
            proportion to its weight p / q: this corrects the masses of modes between which chains
            do not mix.
        proposals: number of independence proposals from q after the kernel's moves, each with one
            more move, accepted with q's own density. These two cost densities of q, which are
            expensive; see `Amortizer.log_prob`.
        sampling: arguments of `Amortizer.sample` for the starts, such as
            ``{"solver": "multistep", "steps": 10}``.
        clip: largest norm of a gradient.
        minutes: time limit; the learning rate falls to zero by then.
        generator: source of all randomness.
        progress: show a progress bar.
        callback: called as ``callback(k, copy)`` after iteration k with the EMA copy.

    Raises:
        Diverged: when a chain or the loss is no longer finite.
    """
    _check_numbers(iterations, updates, batch, fresh, candidates, proposals, minutes)
    _check_sources(q, contexts, pairs, starts)
    from tqdm.auto import tqdm

    average = EMA(q, ema)
    descent = _Descent(q, iterations * updates, learning_rate, weight_decay, clip, minutes)
    batches = batches_of(contexts, pairs, batch, q.dim, generator)
    device = q.denoiser.fourier.device
    history = History()
    state: State | None = None

    bar = tqdm(range(iterations), desc="distill", disable=not progress)
    for k in bar:
        x, own = next(batches)
        x = None if x is None else x.to(device)
        noise = 1.0 if k == 0 and not warm else fresh
        given = target if x is None else as_log_prob(target, x)
        proposal = AmortizerProposal(average.module, x, sampling or {})
        begin = starts_of(proposal, batch, noise, starts, own, given, candidates, generator)
        fixed = kernel.init(begin)
        if state is not None:
            fixed = fixed._replace(step_size=state.step_size, moves=state.moves)
        state, info = kernel.run(fixed, given, generator, steps=steps)
        history.gradient_calls += info.gradient_calls
        if proposals and k:  # the first q has not learned anything
            jump = Independence(proposals, proposal=proposal, local=replace(kernel, steps=1))
            state, jumped = jump.run(state, given, generator)
            history.jumps.append(float(jumped.acceptance))
            history.gradient_calls += jumped.gradient_calls
        if k == 0 and q.standardize is not None:
            q.standardize.fit(state.z if starts is None else starts)

        amortizer_step(
            q, state.z, x, step=descent, updates=updates, p_uncond=p_uncond, generator=generator
        )
        average.update()

        mean = descent.take_loss() / updates
        if not mean < float("inf"):
            raise Diverged(f"the amortizer's loss is {mean} at iteration {k}")
        history.loss.append(mean)
        history.log_prob.append(float(info.log_prob[-1]) if len(info.log_prob) else float("nan"))
        history.displacement.append(float(info.displacement))
        history.acceptance.append(float(info.acceptance))
        bar.set_postfix(loss=f"{mean:.3f}", moved=f"{history.displacement[-1]:.2f}")
        if callback is not None:
            callback(k, average.module)
        if descent.out_of_time:
            break
    q.load_state_dict(average.module.state_dict())
    return history


class _Descent:
    """AdamW steps of an amortizer; the learning rate falls to zero along a cosine.

    Args:
        q: the amortizer.
        updates: steps in all.
        learning_rate, weight_decay: of AdamW.
        clip: largest norm of a gradient.
        minutes: after which the learning rate is zero, whatever is left of the steps.
    """

    def __init__(
        self,
        q: Amortizer,
        updates: int,
        learning_rate: float,
        weight_decay: float,
        clip: float,
        minutes: float | None,
    ) -> None:
        self.updates, self.clip = updates, clip
        self.begun, self.seconds = time.monotonic(), math.inf if minutes is None else 60 * minutes
        self.weights = [p for p in q.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.weights, lr=learning_rate, betas=(0.9, 0.999), weight_decay=weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda update: (1 + math.cos(math.pi * self._passed(update))) / 2
        )
        self.total = torch.zeros((), device=q.denoiser.fourier.device)

    def __call__(self, loss: Tensor) -> Tensor:
        """One step down a loss; returns the norm of the gradient."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.weights, self.clip)
        self.optimizer.step()
        self.schedule.step()
        self.total.add_(loss.detach())
        return norm

    def take_loss(self) -> float:
        """The sum of the losses since it was last taken."""
        total = float(self.total)
        self.total.zero_()
        return total

    @property
    def out_of_time(self) -> bool:
        """Whether the minutes are over."""
        return self._passed(0) == 1

    def _passed(self, update: int) -> float:
        """The share of the steps or of the time that has passed."""
        elapsed = (time.monotonic() - self.begun) / self.seconds
        return min(1.0, max(update / self.updates, elapsed))


def _check_numbers(
    iterations: int,
    updates: int,
    batch: int,
    fresh: float,
    candidates: int,
    proposals: int,
    minutes: float | None,
) -> None:
    if iterations < 1 or updates < 1 or batch < 1:
        raise BadInput(
            "iterations, updates and batch must be at least 1, "
            f"got {iterations}, {updates} and {batch}"
        )
    if not 0 <= fresh <= 1:
        raise BadInput(f"fresh must lie in [0, 1], got {fresh}")
    if candidates < 1 or proposals < 0:
        raise BadInput(
            "candidates must be at least 1 and proposals not negative, "
            f"got {candidates} and {proposals}"
        )
    if minutes is not None and not minutes > 0:
        raise BadInput(f"minutes must be positive, got {minutes}")


def _check_sources(
    q: Amortizer,
    contexts: Iterable[Tensor] | Tensor | None,
    pairs: Pairs | None,
    starts: Tensor | None,
) -> None:
    if pairs is not None and (contexts is not None or starts is not None):
        raise BadInput("pairs hold contexts and starts: give them alone")
    if starts is not None and (starts.ndim != 2 or starts.shape[1] != q.dim or not len(starts)):
        raise BadInput(f"starts must have shape (N, {q.dim}), got {tuple(starts.shape)}")
    if contexts is None and pairs is None and q.encoder is not None:
        raise BadInput("this amortizer has a context: give distill the contexts to learn from")
    if pairs is not None and q.encoder is None:
        raise BadInput("pairs must be given to an amortizer with a context, got one without")
