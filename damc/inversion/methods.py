"""The ways of inverting a decoder that the paper compares, behind one function.

| method | starts at | then |
|---|---|---|
| `opt` | a random code, truncated | 100 iterations on the misfit (Abdal et al. 2019) |
| `enc` | the encoder's code | 100 iterations on the misfit (Zhu et al. 2016) |
| `lebm-1x`, `-2x`, `-4x` | a random code, truncated | 100, 200, 400 on misfit and energy |
| `damc` | the best of 4 draws of q(z \\| x) | 100 iterations on the misfit |

The iterations are Adam's by default, as in the authors' code. "langevin" is what the paper
describes: noisy moves on the posterior with the energy, for `lebm` and `damc`.
"""

from __future__ import annotations

__all__ = ["METHODS", "Inverted", "descend", "invert"]

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.errors import BadInput, Diverged
from damc.inversion.learner import Inversion
from damc.inversion.problem import Problem
from damc.metrics.images import mse

METHODS: dict[str, int] = {
    "opt": 100,
    "enc": 100,
    "lebm-1x": 100,
    "lebm-2x": 200,
    "lebm-4x": 400,
    "damc": 100,
}
"""Every method and its number of iterations."""

TRUNCATION = 0.7
"""How far from the average code, of 1, a random start lies."""


@dataclass(frozen=True)
class Inverted:
    """What `invert` found, on the CPU.

    Attributes:
        method: its name in `METHODS`.
        codes: ``(B, d)``, in the decoder's own units.
        images: of these codes, ``(B, C, H, W)``.
        mse: mean squared error per pixel, ``(B,)``.
        start_mse: the same before the iterations.
        perceptual: distance by the problem's perceptual network, ``(B,)``, if it has one.
        samples: codes of n posterior samples, ``(n, B, d)``, if they were asked for.
        sample_images: of these samples, ``(n, B, C, H, W)``.
    """

    method: str
    codes: Tensor
    images: Tensor
    mse: Tensor
    start_mse: Tensor
    perceptual: Tensor | None = None
    samples: Tensor | None = None
    sample_images: Tensor | None = None

    @property
    def pixel_spread(self) -> Tensor | None:
        """Standard deviation of pixels over the posterior samples, a mean over them, ``(B,)``."""
        x = self.sample_images
        return None if x is None else x.std(0).flatten(1).mean(1)

    @property
    def code_spread(self) -> Tensor | None:
        """Standard deviation of a code's numbers over the samples, a mean over them, ``(B,)``."""
        return None if self.samples is None else self.samples.std(0).mean(1)


def invert(
    parts: Problem | Inversion,
    x: Tensor,
    method: str = "damc",
    *,
    sampler: str = "adam",
    iterations: int | None = None,
    rate: float = 0.01,
    candidates: int = 4,
    samples: int = 0,
    sample_steps: int | None = None,
    generator: torch.Generator | None = None,
) -> Inverted:
    """Finds the codes that made images.

    Args:
        parts: the decoder, which is enough for "opt"; the other methods want what was learned.
        x: images ``(B, C, H, W)`` in [-1, 1].
        method: a name in `METHODS`.
        sampler: "adam", noiseless, or "langevin", for "lebm" and "damc".
        iterations: the method's own number by default; 0 leaves the start as it is.
        rate: Adam's step in standardized codes.
        candidates: draws of q(z | x) from which "damc" starts at the one that fits best; they cost
            one pass of the decoder each, without a gradient.
        samples: how many posterior samples to draw for each image, 0 or at least 2 ("damc").
        sample_steps: Langevin moves of each of them; the run's own T by default.
        generator: source of all randomness.

    Raises:
        Diverged: when codes or images are no longer finite.
    """
    _check(parts, method, sampler, iterations, rate, candidates, samples)
    problem = parts.problem if isinstance(parts, Inversion) else parts
    x = problem.check_images(x.to(problem.mean.device))
    n = METHODS[method] if iterations is None else iterations
    z0 = _start(parts, x, method, candidates, generator)
    if sampler == "langevin" and isinstance(parts, Inversion):
        z = parts.chain(x, z0, n, generator=generator)
    elif method.startswith("lebm") and isinstance(parts, Inversion):
        posterior = parts.posterior(x)
        z, _ = descend(lambda z: -posterior(z), z0, n, rate)
    else:
        z, _ = descend(lambda z: problem.misfit(x, z), z0, n, rate)
    with torch.no_grad():
        images, first = problem.decode(z), problem.decode(z0)
        perceptual = None if problem.perceptual is None else problem.perceptual_distance(x, images)
    if not bool(torch.isfinite(z).all() and torch.isfinite(images).all()):
        raise Diverged(f"the codes or images that {method} found are not finite")
    drawn = shown = None
    if samples and isinstance(parts, Inversion):
        moves = parts.settings.posterior_steps if sample_steps is None else sample_steps
        seen = parts.look(x)
        chains = [
            parts.chain(x, parts.start(seen, generator=generator), moves, generator=generator)
            for _ in range(samples)
        ]
        drawn = torch.stack([problem.codes(z) for z in chains]).cpu()
        with torch.no_grad():
            shown = torch.stack([problem.decode(z) for z in chains]).cpu()
    return Inverted(
        method,
        problem.codes(z).cpu(),
        images.cpu(),
        mse(x, images).cpu(),
        mse(x, first).cpu(),
        None if perceptual is None else perceptual.cpu(),
        drawn,
        shown,
    )


def descend(
    objective: Callable[[Tensor], Tensor], z: Tensor, iterations: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Adam from z, ``(B, d)``, down an objective ``(B, d) -> (B,)``, each point for itself.

    Returns:
        Where the points end, ``(B, d)``, and the mean objective before each iteration, ``(T,)``.
    """
    z = z.detach().clone()
    optimizer = torch.optim.Adam([z], lr=rate)
    values = z.new_empty(iterations)
    for k in range(iterations):
        value, z.grad = value_and_grad(objective, z)
        optimizer.step()
        values[k] = value.mean()
        if not bool(torch.isfinite(value).all()):
            raise Diverged(f"the misfit is not finite after {k} iterations")
    return z, values


def _start(
    parts: Problem | Inversion,
    x: Tensor,
    method: str,
    candidates: int,
    generator: torch.Generator | None,
) -> Tensor:
    if isinstance(parts, Inversion):
        if method == "enc":
            return parts.encode(x)
        if method == "damc":
            drawn = parts.start(parts.look(x), candidates, generator=generator)
            with torch.no_grad():
                misfits = torch.stack([parts.problem.misfit(x, z) for z in drawn])
            return drawn[misfits.argmin(0), torch.arange(len(x), device=x.device)]
        parts = parts.problem
    return parts.draw(len(x), generator) * TRUNCATION


def _check(
    parts: Problem | Inversion,
    method: str,
    sampler: str,
    iterations: int | None,
    rate: float,
    candidates: int,
    samples: int,
) -> None:
    if method not in METHODS:
        raise BadInput(f"there is no method {method!r}: it is one of {', '.join(METHODS)}")
    if sampler not in ("adam", "langevin"):
        raise BadInput(f"sampler must be 'adam' or 'langevin', got {sampler!r}")
    if method != "opt" and not isinstance(parts, Inversion):
        raise BadInput(f"the method {method} wants learned parts: train an inversion run first")
    if sampler == "langevin" and method in ("opt", "enc"):
        raise BadInput(f"the method {method} optimizes: the sampler langevin is lebm's and damc's")
    if (iterations is not None and iterations < 0) or not rate > 0:
        raise BadInput(
            f"iterations must not be negative and rate positive, got {iterations} and {rate}"
        )
    if candidates < 1:
        raise BadInput(f"candidates must be at least 1, got {candidates}")
    if samples < 0 or samples == 1:
        raise BadInput(f"a spread wants at least 2 posterior samples, or 0 for none; got {samples}")
    if samples and method != "damc":
        raise BadInput(f"the method {method} draws no posterior samples: damc does")
