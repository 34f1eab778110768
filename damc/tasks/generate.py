"""Draw images from a trained model, by any of its ways."""

from __future__ import annotations

__all__ = ["SOURCES", "generate", "sources", "stream"]

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput, Diverged
from damc.learn import Learner

SOURCES = {
    "amortizer": "the amortizer q(z), decoded",
    "energy": "Langevin chains on the energy prior, decoded",
    "gaussian": "N(0, I) decoded, which shows what the prior adds",
    "resampling": "N(0, I) resampled by the density ratio, decoded",
    "mixture": "the mixture density of the codes, decoded",
    "second": "the second-stage VAE of the codes, decoded",
    "model": "the model's own",
}
"""Every way of drawing latent points, in words."""


def sources(learner: Learner) -> tuple[str, ...]:
    """The ways that this learner has, its own first."""
    return tuple(learner.sources)


def generate(
    learner: Learner,
    n: int,
    *,
    source: str | None = None,
    steps: int | None = None,
    seed: int = 0,
    batch: int = 256,
) -> Tensor:
    """Images of the model on the CPU, ``(n, C, H, W)``, drawn `batch` at a time.

    Args:
        learner: a trained learner.
        n: how many images.
        source: one of `sources(learner)`, the first by default.
        steps: Langevin moves of "energy"; the settings' number by default.
        seed: one seed gives the same images again.
        batch: how many are drawn together, which bounds the memory.
    """
    return torch.cat(list(stream(learner, n, source=source, steps=steps, seed=seed, batch=batch)))


def stream(
    learner: Learner,
    n: int,
    *,
    source: str | None = None,
    steps: int | None = None,
    seed: int = 0,
    batch: int = 256,
) -> Iterator[Tensor]:
    """The images of `generate` in batches, so that only one is in memory at a time."""
    if n < 1 or (steps is not None and steps < 0):
        raise BadInput(f"n is {n} and steps {steps}: at least 1 image and 0 steps are wanted")
    ways = sources(learner)
    source = ways[0] if source is None else source
    if steps is not None and source != "energy":
        raise BadInput(f"steps count Langevin moves of the source energy, not of {source}")
    if source not in ways:
        raise BadInput(f"this {learner.name} run draws from {', '.join(ways)}, not from {source!r}")
    options: dict[str, Any] = {} if source == ways[0] else {"source": source}
    if steps is not None:
        options["steps"] = steps
    generator = torch.Generator(learner.device).manual_seed(seed)
    for start in range(0, n, batch):
        part = learner.sample(min(batch, n - start), generator=generator, **options).detach().cpu()
        if not bool(torch.isfinite(part).all()):
            raise Diverged(f"samples from {source} are not finite")
        yield part
