"""The paper's one-liner (equation 6): make a sampler out of a Markov kernel,

    q_k <- argmin_q KL(K_T q_{k-1} || q).

Start chains at the sampler, move them T steps of the kernel K, train the sampler on where they
end, and repeat.
"""

from __future__ import annotations

__all__ = ["History", "distil"]

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from damc.amortise import EMA, Amortiser
from damc.density import Target, as_log_prob
from damc.errors import BadInput, Diverged
from damc.langevin import Kernel, State


@dataclass
class History:
    """What `distil` saw in every iteration."""

    loss: list[float] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)  # mean over the chains' last start points
    displacement: list[float] = field(default_factory=list)  # mean |z_T - z_0|
    acceptance: list[float] = field(default_factory=list)
    gradient_calls: int = 0  # log-density gradients so far, counted for each chain

    def save(self, path: str | Path) -> None:
        """Writes the history as JSON."""
        Path(path).write_text(json.dumps(asdict(self)))


def distil(
    q: Amortiser,
    target: Target,
    kernel: Kernel,
    *,
    iterations: int,
    contexts: Iterable[Tensor] | Tensor | None = None,
    batch: int = 500,
    steps: int | None = None,
    updates: int = 6,
    p_uncond: float = 0.2,
    learning_rate: float = 5e-4,
    weight_decay: float = 1e-4,
    ema: float = 0.1,
    fresh: float = 0.0,
    warm: bool = False,
    sampling: dict[str, Any] | None = None,
    clip: float = 100.0,
    generator: torch.Generator | None = None,
    progress: bool = True,
    callback: Callable[[int, Amortiser], None] | None = None,
) -> History:
    """Amortises a kernel's long-run chain: the paper's equations 6 and 7 for any target.

    Each iteration starts `batch` chains at the EMA copy of q, moves them by the kernel, and
    makes `updates` gradient steps of q towards where they end. At the end q takes over the
    weights of the EMA copy, the average over the last iterations.

    Args:
        q: the amortiser; it is trained in place.
        target: ``log_prob(z)``, or ``log_prob(z, x)`` if there are contexts.
        kernel: the Markov kernel; `MALA` with adaptation keeps its step size across iterations.
        iterations: how often to sample, move and learn.
        contexts: batches of x, any iterable (started again when it ends), or one tensor
            ``(N, ...)`` from which batches are drawn.
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
        sampling: arguments of `Amortiser.sample` for the starts, such as
            ``{"solver": "multistep", "steps": 10}``.
        clip: largest norm of a gradient.
        generator: source of all randomness.
        progress: show a progress bar.
        callback: called as ``callback(k, copy)`` after iteration k with the EMA copy.

    Raises:
        Diverged: when a chain or the loss is no longer finite.
    """
    if iterations < 1 or updates < 1 or batch < 1:
        raise BadInput(
            "iterations, updates and batch must be at least 1, "
            f"got {iterations}, {updates} and {batch}"
        )
    if not 0 <= fresh <= 1:
        raise BadInput(f"fresh must lie in [0, 1], got {fresh}")
    if contexts is None and q.encoder is not None:
        raise BadInput("this amortiser has a context: give distil the contexts to learn from")
    from tqdm import tqdm

    average = EMA(q, ema)
    weights = [p for p in q.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        weights, lr=learning_rate, betas=(0.9, 0.999), weight_decay=weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations * updates)
    batches = _batches(contexts, batch, generator)
    device = q.denoiser.fourier.device
    history = History()
    state: State | None = None
    bar = tqdm(range(iterations), desc="distil", disable=not progress)
    for k in bar:
        x = next(batches)
        x = None if x is None else x.to(device)
        noise = 1.0 if k == 0 and not warm else fresh
        starts = _starts(average.module, batch, x, noise, sampling, generator)
        fixed = kernel.init(starts)
        if state is not None:
            fixed = fixed._replace(step_size=state.step_size, moves=state.moves)
        state, info = kernel.run(fixed, as_log_prob(target, x), generator, steps=steps)

        total = torch.zeros((), device=device)
        for _ in range(updates):
            loss = q.loss(state.z, x, p_uncond=p_uncond, generator=generator)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(weights, clip)
            optimiser.step()
            schedule.step()
            total += loss.detach()
        average.update()

        mean = float(total) / updates
        if not mean < float("inf"):
            raise Diverged(f"the amortiser's loss is {mean} at iteration {k}")
        history.loss.append(mean)
        history.log_prob.append(float(info.log_prob[-1]) if len(info.log_prob) else float("nan"))
        history.displacement.append(float(info.displacement))
        history.acceptance.append(float(info.acceptance))
        history.gradient_calls += info.gradient_calls
        bar.set_postfix(loss=f"{mean:.3f}", moved=f"{history.displacement[-1]:.2f}")
        if callback is not None:
            callback(k, average.module)
    q.load_state_dict(average.module.state_dict())
    return history


def _starts(
    q: Amortiser,
    batch: int,
    x: Tensor | None,
    fresh: float,
    sampling: dict[str, Any] | None,
    generator: torch.Generator | None,
) -> Tensor:
    n = batch if x is None else len(x)
    weight = q.denoiser.fourier
    z = torch.randn(n, q.dim, generator=generator, dtype=weight.dtype, device=weight.device)
    amortised = n - round(fresh * n)
    if amortised:
        where = {"n": amortised} if x is None else {"x": x[:amortised]}
        z[:amortised] = q.sample(**where, **(sampling or {}), generator=generator)
    return z


def _batches(
    contexts: Iterable[Tensor] | Tensor | None, batch: int, generator: torch.Generator | None
) -> Iterator[Tensor | None]:
    if contexts is None:
        yield from itertools.repeat(None)
    elif isinstance(contexts, Tensor):
        while True:
            device = contexts.device if generator is None else generator.device
            where = torch.randint(len(contexts), (batch,), generator=generator, device=device)
            yield contexts[where.to(contexts.device)]
    else:
        while True:
            empty = True
            for x in contexts:
                empty = False
                yield x
            if empty:
                raise BadInput("the contexts ended: give an iterable that can be started again")
