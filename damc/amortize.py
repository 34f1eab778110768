"""The amortizer, a diffusion model q(z | x), q(z) of vectors, and `distill`, which makes it the
sampler of a Markov kernel (the paper's equation 6):

    q_k <- argmin_q KL(K_T q_{k-1} || q).

Start chains at the sampler, move them T steps of the kernel K, train the sampler on where they
end, and repeat.
"""

from __future__ import annotations

__all__ = ["EMA", "Amortizer", "History", "amortizer_step", "distill"]

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from damc.density import Target, as_log_prob
from damc.diffusion.denoiser import VectorDenoiser, epsilon_loss
from damc.diffusion.sampling import ancestral, solve
from damc.diffusion.schedule import TruncatedCosine
from damc.errors import BadInput, Diverged
from damc.fast.gradients import is_plain
from damc.fast.packed import PackedDenoiser
from damc.kernels.base import Kernel, State


class Amortizer(nn.Module):
    """A sampler q(z | x) and q(z) in one network: a denoising diffusion model of vectors.

    Without a context it is q(z) alone. With one, an encoder embeds x as the denoiser's
    condition, and a null condition stands for "no x" (classifier-free, Ho and Salimans 2021).

    Args:
        dim: size of z.
        context: None, the size of the vectors x (an MLP embeds them), or any module that maps
            x to ``(B, embedding)``.
        embedding: size of the condition; by default 1,024 with a module, else 128.
        capacity: width factor of the denoiser.
        widths: hidden widths of the denoiser's levels.
        null: "token", one learned vector, or "noise", an MLP of fresh Gaussian noise as in the
            authors' code.
        solver: "ancestral", or one of `damc.diffusion.sampling.SOLVERS`, which are deterministic.
        steps: evaluations of the denoiser for one sample.
        gamma: noise exponent of ancestral sampling.
        guidance: w in eps^ = (1 + w) eps^(x) - w eps^(null); 0 is the conditional model itself.
        residual: the network predicts eps - z_u; False predicts eps itself.

    Example:
        >>> q = Amortizer(dim=2)
        >>> q.sample(5, steps=10).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        dim: int,
        context: int | nn.Module | None = None,
        *,
        embedding: int | None = None,
        capacity: float = 1.0,
        widths: tuple[int, int, int] = (128, 256, 256),
        null: str = "token",
        solver: str = "ancestral",
        steps: int = 100,
        gamma: float = 1.0,
        guidance: float = 0.0,
        residual: bool = True,
    ) -> None:
        super().__init__()
        if null not in ("token", "noise"):
            raise BadInput(f"null must be 'token' or 'noise', got {null!r}")
        if embedding is None:
            embedding = 1024 if isinstance(context, nn.Module) else 128
        self.config: dict[str, Any] = {
            "dim": dim,
            "context": context if isinstance(context, int) else None,
            "embedding": embedding,
            "capacity": capacity,
            "widths": list(widths),
            "null": null,
            "solver": solver,
            "steps": steps,
            "gamma": gamma,
            "guidance": guidance,
            "residual": residual,
        }
        self.dim, self.solver, self.steps = dim, solver, steps
        self.gamma, self.guidance = gamma, guidance
        self.schedule = TruncatedCosine()
        self.denoiser = VectorDenoiser(
            dim, embedding, capacity=capacity, widths=widths, residual=residual
        )
        self.encoder = _vector_encoder(context, embedding) if isinstance(context, int) else context
        self.null: nn.Parameter | nn.Module
        if null == "token":
            self.null = nn.Parameter(torch.randn(1, embedding) * embedding**-0.5)
        else:
            self.null = nn.Sequential(
                nn.Linear(dim, 128), nn.LeakyReLU(), nn.Linear(128, embedding)
            )

    def sample(
        self,
        n: int | None = None,
        x: Tensor | None = None,
        *,
        steps: int | None = None,
        solver: str | None = None,
        gamma: float | None = None,
        guidance: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws from q(z) or q(z | x).

        Args:
            n: how many points; with x, how many for each x (one if left out).
            x: contexts, ``(B, ...)``; without it the draw is unconditional.
            steps, solver, gamma, guidance: those of the amortizer by default.
            generator: source of all randomness.

        Returns:
            ``(n, d)``; with x ``(B, d)``, or ``(n, B, d)`` if n is given too.
        """
        steps = self.steps if steps is None else steps
        guidance = self.guidance if guidance is None else guidance
        if steps < 1:
            raise BadInput(f"sampling needs at least 1 step, got {steps}")
        if (n is None and x is None) or (n is not None and n < 1):
            raise BadInput(f"give a positive number of samples n, or contexts x; got n={n}")
        with torch.no_grad():
            weight = self.denoiser.fourier
            rows = (n or 1) if x is None else len(x)
            shape = (rows,) if x is None or n is None else (n, rows)
            noise = torch.randn(
                *shape, self.dim, generator=generator, dtype=weight.dtype, device=weight.device
            )
            condition = null = None
            if x is None or guidance:
                condition = null = self._null(rows, generator)
            if x is not None:
                # n samples for each x are n rows of the same conditions, computed once.
                condition = self.embed(x)
            assert condition is not None
        with torch.inference_mode():
            z = self._denoise(
                noise,
                condition,
                null if x is not None else None,
                steps,
                self.solver if solver is None else solver,
                self.gamma if gamma is None else gamma,
                guidance,
                generator,
            )
        return z.clone()  # outside, so that the caller gets a tensor that autograd knows

    def loss(
        self,
        z: Tensor,
        x: Tensor | None = None,
        *,
        p_uncond: float = 0.2,
        u: Tensor | None = None,
        eps: Tensor | None = None,
        keep: Tensor | None = None,
        embedded: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The denoising loss of equation 7 on points z, as a bound on -log q(z | x).

        A share `p_uncond` of the batch, exact in expectation, has its condition replaced by the
        null one. 0 trains q(z | x) only; 1, or no x, trains q(z) only.

        Args:
            z: points to learn, ``(B, d)``.
            x: their contexts, ``(B, ...)``.
            p_uncond: share of the batch that is trained without its condition.
            u: times, ``(B,)``; uniform on [0, 1] by default.
            eps: noise, ``(B, d)``; standard normal by default.
            keep: indices of the points that keep their condition; drawn by default.
            embedded: what `embed` gave for x, ``(B, embedding)``, if it is known already; the
                encoder then neither runs nor learns.
            generator: source of all randomness.
        """
        if not 0 <= p_uncond <= 1:
            raise BadInput(f"p_uncond must lie in [0, 1], got {p_uncond}")
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise BadInput(f"z must have shape (B, {self.dim}), got {tuple(z.shape)}")
        condition = self._condition(len(z), x, p_uncond, keep, embedded, generator)
        if u is None:
            u = torch.empty_like(z[:, 0]).uniform_(generator=generator)
        if eps is None:
            eps = torch.empty_like(z).normal_(generator=generator)
        alpha, sigma = self.schedule(u[:, None])
        prediction = self.denoiser(alpha * z + sigma * eps, self.schedule.angle(u), condition)
        return epsilon_loss(prediction, eps)

    def embed(self, x: Tensor) -> Tensor:
        """The condition that stands for x, ``(B, embedding)``."""
        if self.encoder is None:
            raise BadInput("this amortizer has no context: it was made with context=None")
        embedded: Tensor = self.encoder(x)
        if embedded.shape != (len(x), self.denoiser.embedding):
            raise BadInput(
                f"the encoder gave shape {tuple(embedded.shape)}, "
                f"wanted ({len(x)}, {self.denoiser.embedding})"
            )
        return embedded

    def save(self, path: str | Path) -> None:
        """Writes ``path.safetensors`` (weights) and ``path.json`` (how to rebuild it)."""
        weights, config = _files(path)
        weights.parent.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), weights)
        config.write_text(json.dumps(self.config, indent=2))

    @classmethod
    def load(cls, path: str | Path, context: nn.Module | None = None) -> Amortizer:
        """Reads what `save` wrote; an encoder of your own must be given again as `context`."""
        weights_file, config_file = _files(path)
        try:
            config = json.loads(config_file.read_text())
            weights = load_file(weights_file)
            config["context"] = config["context"] if context is None else context
            config["widths"] = tuple(config["widths"])
            q = cls(**config)
            q.load_state_dict(weights)
        except Exception as error:
            raise BadInput(f"no amortizer could be read from {path}: {error}") from error
        return q

    def _condition(
        self,
        n: int,
        x: Tensor | None,
        p_uncond: float,
        keep: Tensor | None,
        embedded: Tensor | None,
        generator: torch.Generator | None,
    ) -> Tensor:
        if x is None or p_uncond == 1:
            return self._null(n, generator)
        if len(x) != n:
            raise BadInput(f"got {len(x)} contexts for {n} points; give one for each point")
        if p_uncond == 0:
            return self.embed(x) if embedded is None else embedded
        coin = None
        if keep is None:
            # A fixed count instead of a coin for each point: the encoder does not run on those
            # that are dropped. What p_uncond * n has beyond a whole number is the probability that
            # one point more is; it is embedded all the same, as reading its coin would stall a GPU.
            whole, part = divmod(round(p_uncond * n, 9), 1)
            keep = torch.randperm(n, generator=generator, device=x.device)[int(whole) :]
            if part:
                coin = torch.rand(1, 1, generator=generator, device=x.device) < part
        null = self._null(n, generator).expand(n, -1)
        if not len(keep):
            return null
        kept = self.embed(x[keep]) if embedded is None else embedded[keep]
        if coin is not None:
            kept = torch.cat([torch.where(coin, null[keep[:1]], kept[:1]), kept[1:]])
        return null.index_copy(0, keep, kept)

    def _null(self, n: int, generator: torch.Generator | None) -> Tensor:
        """The null condition: ``(1, embedding)`` if all share it, else ``(n, embedding)``."""
        if isinstance(self.null, nn.Parameter):
            return self.null
        weight = self.denoiser.fourier
        noise = torch.empty(n, self.dim, dtype=weight.dtype, device=weight.device)
        embedded: Tensor = self.null(noise.normal_(generator=generator))
        return embedded

    def _denoise(
        self,
        noise: Tensor,
        condition: Tensor,
        null: Tensor | None,
        steps: int,
        solver: str,
        gamma: float,
        guidance: float,
        generator: torch.Generator | None,
    ) -> Tensor:
        times = torch.linspace(1, 0, steps, dtype=torch.float64)
        if solver != "ancestral":
            times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)[:-1]
        predict = self._predictor(condition, times, noise.shape[:-1])
        if null is not None and guidance:
            conditional, unconditional = predict, self._predictor(null, times, noise.shape[:-1])

            def predict(z: Tensor, i: int) -> Tensor:
                return torch.lerp(unconditional(z, i), conditional(z, i), 1 + guidance)

        if solver == "ancestral":
            return ancestral(predict, noise, self.schedule, times, gamma=gamma, generator=generator)
        return solve(predict, noise, self.schedule, steps, solver)

    def _predictor(
        self, condition: Tensor, times: Tensor, points: torch.Size
    ) -> Callable[[Tensor, int], Tensor]:
        """eps^ of points ``(*points, d)`` at each time of a grid."""
        net, angles = self.denoiser, self.schedule.angle(times).to(condition.device)
        mixed = torch.is_autocast_enabled(condition.device.type)  # knows nothing of buffers
        if type(net) is VectorDenoiser and all(map(is_plain, net.modules())) and not mixed:
            return PackedDenoiser(net, condition, angles, points)
        return lambda z, i: net(z, angles[i], condition)


def _files(path: str | Path) -> tuple[Path, Path]:
    """Where weights and description lie; a name such as q-0.1 keeps what follows its dot."""
    path = Path(path)
    stem = path.stem if path.suffix in (".safetensors", ".json") else path.name
    return path.with_name(f"{stem}.safetensors"), path.with_name(f"{stem}.json")


class EMA:
    """A frozen copy of a module whose weights follow it slowly: torch's `AveragedModel`.

    ``copy <- (1 - rate) copy + rate module`` at every `update`; with ``rate = 1`` it is the
    module itself. The paper starts its chains at such a copy of the sampler. Buffers are copied,
    not averaged: statistics such as those of BatchNorm are running averages already, and counters
    have no average.

    Attributes:
        module: the copy.
    """

    def __init__(self, module: nn.Module, rate: float) -> None:
        if not 0 < rate <= 1:
            raise BadInput(f"the rate of an EMA must lie in (0, 1], got {rate}")
        self.source = module
        self.average = AveragedModel(module, multi_avg_fn=partial(_follow, rate))
        # The copy counts as a first average; from 0, `AveragedModel` would copy once more. The
        # counter stays on the CPU, where reading it stalls no GPU.
        self.average.n_averaged.fill_(1)
        self.module: Any = self.average.module.requires_grad_(False).eval()

    def update(self) -> None:
        """Moves the copy a little towards the module."""
        self.average.update_parameters(self.source)


def _follow(rate: float, averages: Any, weights: Any, _: Any) -> None:
    """torch's `get_ema_multi_avg_fn`, but a function that can be pickled, as estimators must be."""
    torch._foreach_lerp_(averages, weights, rate)


def _vector_encoder(context: int, embedding: int) -> nn.Module:
    """The toy example's embedding of a vector x: four linear layers of 128 with ReLU."""
    if context < 1:
        raise BadInput(f"the size of x must be positive, got {context}")
    sizes = (context, 128, 128, 128, embedding)
    layers: list[nn.Module] = []
    for n, out in itertools.pairwise(sizes):
        layers += [nn.Linear(n, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass
class History:
    """What `distill` saw in every iteration."""

    loss: list[float] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)  # mean over the chains' last start points
    displacement: list[float] = field(default_factory=list)  # mean |z_T - z_0|
    acceptance: list[float] = field(default_factory=list)
    gradient_calls: int = 0  # log-density gradients so far, counted for each chain

    def save(self, path: str | Path) -> None:
        """Writes the history as JSON."""
        Path(path).write_text(json.dumps(asdict(self)))


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
        encoder_updates: the encoder learns in the last so many updates only, and the others share
            one pass through it; None lets it learn in all.
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
        sampling: arguments of `Amortizer.sample` for the starts, such as
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
        raise BadInput("this amortizer has a context: give distill the contexts to learn from")
    from tqdm import tqdm

    average = EMA(q, ema)
    weights = [p for p in q.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        weights, lr=learning_rate, betas=(0.9, 0.999), weight_decay=weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations * updates)
    batches = _batches(contexts, batch, generator)
    device = q.denoiser.fourier.device
    history = History()
    state: State | None = None
    total = torch.zeros((), device=device)

    def descend(loss: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(weights, clip)
        optimizer.step()
        schedule.step()
        total.add_(loss.detach())
        return norm

    bar = tqdm(range(iterations), desc="distill", disable=not progress)
    for k in bar:
        x = next(batches)
        x = None if x is None else x.to(device)
        noise = 1.0 if k == 0 and not warm else fresh
        starts = _starts(average.module, batch, x, noise, sampling, generator)
        fixed = kernel.init(starts)
        if state is not None:
            fixed = fixed._replace(step_size=state.step_size, moves=state.moves)
        given = target if x is None else as_log_prob(target, x)
        state, info = kernel.run(fixed, given, generator, steps=steps)

        total.zero_()
        amortizer_step(
            q, state.z, x, step=descend, updates=updates, p_uncond=p_uncond, generator=generator
        )
        average.update()

        mean = float(total) / updates
        if not mean < float("inf"):
            raise Diverged(f"the amortizer's loss is {mean} at iteration {k}")
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
    q: Amortizer,
    batch: int,
    x: Tensor | None,
    fresh: float,
    sampling: dict[str, Any] | None,
    generator: torch.Generator | None,
) -> Tensor:
    n = batch if x is None else len(x)
    weight = q.denoiser.fourier
    z = torch.randn(n, q.dim, generator=generator, dtype=weight.dtype, device=weight.device)
    amortized = n - round(fresh * n)
    if amortized:
        where = {"n": amortized} if x is None else {"x": x[:amortized]}
        z[:amortized] = q.sample(**where, **(sampling or {}), generator=generator)
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
