"""The methods of inverting a decoder that the paper compares, behind one function.

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

__all__ = [
    "METHODS",
    "Inverted",
    "Method",
    "check_options",
    "descend",
    "invert",
    "problem_of",
]

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from damc.density import value_and_grad
from damc.errors import BadInput, Diverged
from damc.inversion.learner import Inversion
from damc.inversion.problem import Problem
from damc.metrics.images import mse


class Method(NamedTuple):
    """A row of the table above.

    Attributes:
        iterations: how many there are by default.
        start: where they start: "random", "encoder" or "amortizer".
        energy: whether the objective has the learned energy beside the misfit.
        samples: whether it can draw independent posterior samples.
    """

    iterations: int
    start: str
    energy: bool = False
    samples: bool = False

    @property
    def needs_learner(self) -> bool:
        """Whether it needs learned parts beside the decoder."""
        return self.energy or self.start != "random"


METHODS: dict[str, Method] = {
    "opt": Method(100, "random"),
    "enc": Method(100, "encoder"),
    "lebm-1x": Method(100, "random", energy=True),
    "lebm-2x": Method(200, "random", energy=True),
    "lebm-4x": Method(400, "random", energy=True),
    "damc": Method(100, "amortizer", samples=True),
}
"""Every method by name."""

TRUNCATION = 0.7
"""Distance of a random start from the average code, relative to that of a random code."""


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
    generator: torch.Generator | None = None,
) -> Inverted:
    """Finds codes from which the decoder makes given images.

    Args:
        parts: the learner of an inversion run; for "opt", the decoder alone is enough.
        x: images ``(B, C, H, W)`` in [-1, 1].
        method: a name in `METHODS`.
        sampler: "adam", without noise, or "langevin", for "lebm" and "damc".
        iterations: the method's own number by default; 0 leaves the start as it is.
        rate: Adam's step in standardized codes.
        candidates: draws of q(z | x) from which "damc" starts at the one that fits best; they cost
            one pass of the decoder each, without a gradient.
        samples: how many posterior samples to draw for each image, 0 or at least 2 ("damc"), each
            by T Langevin moves of the run.
        generator: source of all randomness.

    Raises:
        Diverged: when codes or images are no longer finite.
    """
    problem, learner = problem_of(parts), _learner_of(parts)
    check_options(
        method,
        sampler=sampler,
        iterations=iterations,
        rate=rate,
        candidates=candidates,
        samples=samples,
    )
    chosen = METHODS[method]
    if chosen.needs_learner and learner is None:
        raise BadInput(
            f"the method {method} must have learned parts, got a decoder alone: train an inversion "
            "run first"
        )
    x = problem.check_images(x.to(problem.mean.device))
    n = chosen.iterations if iterations is None else iterations
    z0 = _start(problem, learner, x, chosen.start, candidates, generator)
    if sampler == "langevin" and learner is not None:
        z = learner.chain(x, z0, n, generator=generator)
    elif chosen.energy and learner is not None:
        posterior = learner.posterior(x)
        z, _ = descend(lambda z: -posterior(z), z0, n, rate)
    else:
        z, _ = descend(lambda z: problem.misfit(x, z), z0, n, rate)
    with torch.no_grad():
        images, first = problem.decode(z), problem.decode(z0)
        perceptual = None if problem.perceptual is None else problem.perceptual_distance(x, images)
    if not bool(torch.isfinite(z).all() and torch.isfinite(images).all()):
        raise Diverged(f"the codes or images that {method} found are not finite")
    drawn = shown = None
    if samples and learner is not None:
        moves = learner.settings.posterior_steps
        seen = learner.look(x)
        chains = [
            learner.chain(x, learner.start(seen, generator=generator), moves, generator=generator)
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


def problem_of(parts: Problem | Inversion) -> Problem:
    """The decoder with its codes, alone or inside a learner."""
    return parts.problem if isinstance(parts, Inversion) else parts


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
    finite = values.isfinite()  # read once: a look at every iteration would stall a GPU
    if not bool(finite.all()):
        raise Diverged(f"the misfit is not finite after {int(finite.int().argmin())} iterations")
    return z, values


def _learner_of(parts: Problem | Inversion) -> Inversion | None:
    return parts if isinstance(parts, Inversion) else None


def _start(
    problem: Problem,
    learner: Inversion | None,
    x: Tensor,
    start: str,
    candidates: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Standardized codes to start at, ``(B, d)``."""
    if learner is None or start == "random":
        return problem.draw(len(x), generator) * TRUNCATION
    if start == "encoder":
        return learner.encode(x)
    drawn = learner.start(learner.look(x), candidates, generator=generator)
    with torch.no_grad():
        misfits = torch.stack([problem.misfit(x, z) for z in drawn])
    return drawn[misfits.argmin(0), torch.arange(len(x), device=x.device)]


def check_options(
    method: str,
    *,
    sampler: str = "adam",
    iterations: int | None = None,
    rate: float = 0.01,
    candidates: int = 4,
    samples: int = 0,
) -> None:
    """Raises `BadInput` for options that `invert` cannot take, before anything is trained."""
    if method not in METHODS:
        raise BadInput(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    chosen = METHODS[method]
    if sampler not in ("adam", "langevin"):
        raise BadInput(f"sampler must be 'adam' or 'langevin', got {sampler!r}")
    if sampler == "langevin" and not (chosen.energy or chosen.samples):
        raise BadInput(f"sampler must be 'adam' for the method {method}, got {sampler!r}")
    if iterations is not None and iterations < 0:
        raise BadInput(f"iterations must be at least 0, got {iterations}")
    if not rate > 0:
        raise BadInput(f"rate must be positive, got {rate}")
    if candidates < 1:
        raise BadInput(f"candidates must be at least 1, got {candidates}")
    if samples < 0 or samples == 1:
        raise BadInput(f"samples must be 0, for none, or at least 2, got {samples}")
    if samples and not chosen.samples:
        raise BadInput(f"method must be damc to draw posterior samples, got {method}")
