"""The amortizer: a diffusion model q(z | x), q(z) of vectors; `damc.distill` makes it the sampler
of a Markov kernel."""

from __future__ import annotations

__all__ = ["Amortizer"]

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from damc.amortize.center import Center
from damc.amortize.denoising import denoise
from damc.amortize.dropping import drop_conditions
from damc.amortize.files import read_amortizer, readable, write_amortizer
from damc.diffusion.denoiser import VectorDenoiser, epsilon_loss
from damc.diffusion.likelihood import flow_log_prob
from damc.diffusion.schedule import TruncatedCosine
from damc.diffusion.standardize import Standardize
from damc.errors import BadInput
from damc.fast.memory import ROWS, draw_by_parts
from damc.randomness import normal, normal_like, uniform_like


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
        fourier: frequencies of the denoiser's sines and cosines of z, by default dim / 2.
        velocity: it predicts v = alpha eps - sigma z instead, learns the mean of |v^ - v|^2 / 2,
            and begins at zero, where q is N(0, I); with `standardize`, a Gaussian that fits.
        frequency: standard deviation of the denoiser's initial Fourier frequencies.
        mixture: blocks and components of a mixture of Gaussians under the denoiser, which learns
            what that misses; ``q.denoiser.mixture.fit(v)`` fits it to standardized points.
        standardize: model L^-1 (z - m) instead of z, for targets that are not of unit scale;
            ``q.standardize.fit(z)`` learns m and L, which are saved with the weights.
        center: model v = L^-1 (z - m(x)) instead of z, with a learned mean m(x) and a factor
            ``q.center.factor`` that is the caller's to set; then it is q(z | x) only.

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
        fourier: int | None = None,
        velocity: bool = False,
        frequency: float = 1.0,
        mixture: tuple[int, int] | None = None,
        standardize: bool = False,
        center: bool = False,
    ) -> None:
        super().__init__()
        if center and (context is None or guidance or standardize):
            raise BadInput(
                "center must be False without a context, and with guidance or standardize, got True"
            )
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
            "fourier": fourier,
            "velocity": velocity,
            "frequency": frequency,
            "mixture": None if mixture is None else list(mixture),
            "standardize": standardize,
            "center": center,
        }
        self.dim, self.solver, self.steps = dim, solver, steps
        self.gamma, self.guidance = gamma, guidance
        self.schedule = TruncatedCosine()
        self.denoiser = VectorDenoiser(
            dim,
            embedding,
            capacity=capacity,
            widths=widths,
            residual=residual,
            fourier=fourier,
            velocity=velocity,
            frequency=frequency,
            mixture=mixture,
        )
        self.encoder = _vector_encoder(context, embedding) if isinstance(context, int) else context
        self.standardize = Standardize(dim) if standardize else None
        self.center = Center(embedding, dim) if center else None
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
        self._check_context(x, guidance)
        if x is None and n is not None and n > ROWS:
            options: dict[str, Any] = {"steps": steps, "solver": solver, "gamma": gamma}
            options |= {"guidance": guidance, "generator": generator}
            return draw_by_parts(partial(self.sample, **options), n)
        with torch.no_grad():
            weight = self.denoiser.fourier
            rows = (n or 1) if x is None else len(x)
            shape = (rows,) if x is None or n is None else (n, rows)
            noise = normal(
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
            z = denoise(
                self.denoiser,
                self.schedule,
                noise,
                condition,
                null if x is not None else None,
                steps=steps,
                solver=self.solver if solver is None else solver,
                gamma=self.gamma if gamma is None else gamma,
                guidance=guidance,
                generator=generator,
            )
        if self.standardize is not None:
            return self.standardize.inverse(z)
        if self.center is not None:
            with torch.no_grad():
                return self.center.place(z, condition)
        return z.clone()  # outside, so that the caller gets a tensor that autograd knows

    @torch.no_grad()
    def log_prob(
        self,
        z: Tensor,
        x: Tensor | None = None,
        *,
        tolerance: float = 0.05,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """log q(z) or log q(z | x), normalized, ``(B,)``, by the probability flow.

        It is the density of samples by many steps of a deterministic solver; those by `ancestral`
        steps are close to it. Only for the null condition "token", as "noise" is a mixture.

        Args:
            z: points, ``(B, d)``.
            x: contexts, ``(B, ...)``; without them the density is that of q(z).
            tolerance: error in nats, see `damc.diffusion.likelihood`.
            generator: source of the random directions that estimate a divergence beyond 64
                dimensions.
        """
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise BadInput(f"z must have shape (B, {self.dim}), got {tuple(z.shape)}")
        if x is None and not isinstance(self.null, nn.Parameter):
            raise BadInput("null must be 'token' for the density of q(z), got 'noise'")
        self._check_context(x)
        condition: Tensor = self.null if x is None else self.embed(x)  # type: ignore[assignment]
        v = z = z.to(self.denoiser.fourier)
        if self.standardize is not None:
            v = self.standardize(z)
        elif self.center is not None:
            v = self.center.whiten(z, condition)

        def epsilon(points: Tensor, angle: Tensor) -> Tensor:
            repeats = 1 if x is None else len(points) // len(v)
            eps: Tensor = self.denoiser(points, angle, condition.repeat_interleave(repeats, 0))
            return eps

        ends = (self.schedule.b, self.schedule.a + self.schedule.b)
        value = flow_log_prob(epsilon, v, ends, tolerance=tolerance, generator=generator)
        scaled = self.center if self.standardize is None else self.standardize
        return value if scaled is None else value - scaled.log_scale()

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
        null one. 0 trains q(z | x) only; 1, or no x, trains q(z) only. With `center`, the mean m(x)
        learns beside it, by |v|^2 / 2.

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
        self._check_context(x, p_uncond)
        if self.standardize is not None:
            z = self.standardize(z)
        condition = self._condition(len(z), x, p_uncond, keep, embedded, generator)
        beside = z.new_zeros(())
        if self.center is not None:
            z = self.center.whiten(z, condition)
            beside, z = z.square().sum(1).mean() / 2, z.detach()
        if u is None:
            u = uniform_like(z[:, 0], generator)
        if eps is None:
            eps = normal_like(z, generator)
        alpha, sigma = self.schedule(u[:, None])
        prediction = self.denoiser(alpha * z + sigma * eps, self.schedule.angle(u), condition)
        if self.denoiser.velocity:  # eps^ - eps = alpha (v^ - v)
            prediction, eps = prediction / alpha, eps / alpha
        return epsilon_loss(prediction, eps) + beside

    def embed(self, x: Tensor) -> Tensor:
        """The condition that stands for x, ``(B, embedding)``."""
        if self.encoder is None:
            raise BadInput("this amortizer has no context: it was made with context=None")
        embedded: Tensor = self.encoder(x)
        if embedded.shape != (len(x), self.denoiser.embedding):
            raise BadInput(
                f"the encoder {type(self.encoder).__name__} must give embeddings of shape "
                f"({len(x)}, {self.denoiser.embedding}), got {tuple(embedded.shape)}"
            )
        return embedded

    def save(self, path: str | Path) -> None:
        """Writes ``path.safetensors``: weights, how to rebuild it, and a digest of both.

        At any moment the file is the old one or the new one. ``path.json`` describes it to people.
        """
        write_amortizer(path, self.state_dict(), self.config)

    @classmethod
    def load(cls, path: str | Path, context: nn.Module | None = None) -> Amortizer:
        """Reads what `save` wrote; an encoder of your own must be given again as `context`."""
        with readable(path):
            config, weights = read_amortizer(path)
            q = cls(**config if context is None else {**config, "context": context})
            q.load_state_dict(weights)
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
        null = partial(self._null, n, generator)
        return drop_conditions(self.embed, null, x, p_uncond, keep, embedded, generator)

    def _check_context(self, x: Tensor | None, unconditional: float = 0.0) -> None:
        if self.center is not None and (x is None or unconditional):
            raise BadInput("an amortizer with a center has no q(z): x must be given, p_uncond be 0")

    def _null(self, n: int, generator: torch.Generator | None) -> Tensor:
        """The null condition: ``(1, embedding)`` if all share it, else ``(n, embedding)``."""
        if isinstance(self.null, nn.Parameter):
            return self.null
        weight = self.denoiser.fourier
        noise = normal(n, self.dim, generator=generator, dtype=weight.dtype, device=weight.device)
        embedded: Tensor = self.null(noise)
        return embedded


def _vector_encoder(context: int, embedding: int) -> nn.Module:
    """The toy example's embedding of a vector x: four linear layers of 128 with ReLU."""
    if context < 1:
        raise BadInput(f"the size of x must be positive, got {context}")
    sizes = (context, 128, 128, 128, embedding)
    layers: list[nn.Module] = []
    for n, out in itertools.pairwise(sizes):
        layers += [nn.Linear(n, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
