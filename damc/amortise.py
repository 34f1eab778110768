"""The amortiser: a diffusion model q(z | x), q(z) of latent points; `damc.distil` makes it the
sampler of a long MCMC chain."""

from __future__ import annotations

__all__ = ["EMA", "Amortiser"]

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from damc.denoise import VectorDenoiser, ancestral, epsilon_loss, solve
from damc.errors import BadInput
from damc.noise import TruncatedCosine


class Amortiser(nn.Module):
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
        solver: "ancestral", or one of the deterministic solvers in `damc.denoise.SOLVERS`.
        steps: evaluations of the denoiser for one sample (a "heun" step takes two).
        gamma: noise exponent of ancestral sampling.
        guidance: w in eps^ = (1 + w) eps^(x) - w eps^(null); 0 is the conditional model itself.
        residual: the network predicts eps - z_u; False predicts eps itself.

    Example:
        >>> q = Amortiser(dim=2)
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
            steps, solver, gamma, guidance: those of the amortiser by default.
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

        A share `p_uncond` of the batch has its condition replaced by the null one. 0 trains
        q(z | x) only; 1, or no x, trains q(z) only.

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
            raise BadInput("this amortiser has no context: it was made with context=None")
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
    def load(cls, path: str | Path, context: nn.Module | None = None) -> Amortiser:
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
            raise BadInput(f"no amortiser could be read from {path}: {error}") from error
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
        if keep is None:
            # A fixed count instead of a coin for each point: the same in expectation, and the
            # encoder never runs on an x whose embedding would be thrown away.
            dropped = round(p_uncond * n)
            if not 0 < dropped < n:  # too few points to divide: toss a coin for each after all
                coins = torch.rand(n, generator=generator, device=x.device)
                dropped = int((coins < p_uncond).sum())
            keep = torch.randperm(n, generator=generator, device=x.device)[dropped:]
        null = self._null(n, generator).expand(n, -1)
        if not len(keep):
            return null
        kept = self.embed(x[keep]) if embedded is None else embedded[keep]
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
        points = steps if solver == "ancestral" else steps + 1
        times = torch.linspace(1, 0, points, dtype=torch.float64)
        if solver in ("ddim", "multistep"):
            times = times[:-1]  # they never evaluate at time 0
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
        """eps^ of points ``(*points, d)`` along a time grid.

        All that does not depend on z is computed beforehand. Gates and shifts are made for
        several steps in one product, since small ones are slow: for all steps if the points share
        one condition.
        """
        net, rows = self.denoiser, len(condition)
        share = net.condition_share(condition)
        time = net.time_share(self.schedule.angle(times).to(condition.device))
        weights = net.weights()
        if len(points) == 1 and points[0] * len(times) > 1000:  # else the copies do not pay
            weights = weights.laid_out(*points)
        together = min(len(times), max(1, 1024 // rows))  # few enough for the caches
        # For every block gates and shifts of that many steps; for every step those of all blocks.
        room = [share.new_empty(together, rows, len(bias)) for bias in weights.biases]
        pairs = [[step.chunk(2, dim=-1) for step in both] for both in room]
        modulations = list(zip(*pairs, strict=True))
        known = -1  # the part of the grid that they are of

        def predict(z: Tensor, i: int) -> Tensor:
            nonlocal known
            part, place = divmod(i, together)
            if known != part:
                steps = time[part * together : (part + 1) * together, None]
                flat = [both[: len(steps)].flatten(0, 1) for both in room]
                net.modulation((share + steps).flatten(0, 1), weights, flat)
                known = part
            return net.blocks(z, modulations[place], weights)

        return predict


def _files(path: str | Path) -> tuple[Path, Path]:
    """Where weights and description lie; a name such as q-0.1 keeps what follows its dot."""
    path = Path(path)
    stem = path.stem if path.suffix in (".safetensors", ".json") else path.name
    return path.with_name(f"{stem}.safetensors"), path.with_name(f"{stem}.json")


class EMA:
    """A frozen copy of a module whose weights follow it slowly.

    ``copy <- (1 - rate) copy + rate module`` at every `update`; with ``rate = 1`` it is the
    module itself. The paper starts its chains at such a copy of the sampler.
    """

    def __init__(self, module: nn.Module, rate: float) -> None:
        if not 0 < rate <= 1:
            raise BadInput(f"the rate of an EMA must lie in (0, 1], got {rate}")
        self.rate = rate
        self.source = module
        self.module: Any = copy.deepcopy(module).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self) -> None:
        """Moves the copy a little towards the module."""
        torch._foreach_lerp_(
            list(self.module.parameters()), list(self.source.parameters()), self.rate
        )


def _vector_encoder(context: int, embedding: int) -> nn.Module:
    """The toy example's embedding of a vector x: four linear layers of 128 with ReLU."""
    if context < 1:
        raise BadInput(f"the size of x must be positive, got {context}")
    sizes = (context, 128, 128, 128, embedding)
    layers: list[nn.Module] = []
    for n, out in itertools.pairwise(sizes):
        layers += [nn.Linear(n, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
