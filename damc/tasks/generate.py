"""Draw images from a trained model, from any of its sources."""

from __future__ import annotations

__all__ = ["SOURCES", "generate", "stream", "write_samples"]

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from damc.disk import write_atomically
from damc.errors import BadInput, Diverged
from damc.learn.learner import Learner
from damc.report import plots

SOURCES = {
    "amortizer": "the amortizer q(z), decoded",
    "energy": "Langevin chains on the energy prior, decoded",
    "gaussian": "N(0, I) decoded, which shows what the prior adds",
    "resampling": "N(0, I) resampled by the density ratio, decoded",
    "mixture": "the mixture density of the codes, decoded",
    "second": "the second-stage VAE of the codes, decoded",
    "model": "the model",
}
"""What each of the `Learner.sources` is."""

_SHOWN = 256  # images in the picture of `write_samples`


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
        source: one of `learner.sources`, the first by default.
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
    if n < 1:
        raise BadInput(f"n must be at least 1, got {n}")
    if steps is not None and steps < 0:
        raise BadInput(f"steps must be at least 0, got {steps}")
    if not learner.sources:
        raise BadInput(f"the learner must be one that can sample, got {learner.name}")
    source = learner.sources[0] if source is None else source
    if steps is not None and source != "energy":
        raise BadInput(f"source must be energy where steps are given, got {source}")
    if source not in learner.sources:
        known = " or ".join(learner.sources)
        raise BadInput(f"source of a {learner.name} run must be {known}, got {source!r}")
    generator = torch.Generator(learner.device).manual_seed(seed)
    for start in range(0, n, batch):
        size = min(batch, n - start)
        part = learner.sample(size, source=source, steps=steps, generator=generator).detach().cpu()
        if not bool(torch.isfinite(part).all()):
            raise Diverged(f"samples from {source} are not finite")
        yield part


def write_samples(images: Tensor, folder: str | Path, source: str) -> dict[str, Path]:
    """Writes ``SOURCE.png`` and ``samples.npy``; gives both by caption.

    Args:
        images: ``(n, C, H, W)`` in [-1, 1].
        folder: where to write.
        source: where they were drawn from.
    """
    folder = Path(folder)
    picture = plots.image_grid(images[:_SHOWN], folder / f"{source}.png")
    buffer = io.BytesIO()
    np.save(buffer, images.numpy(), allow_pickle=False)
    array = write_atomically(folder / "samples.npy", buffer.getvalue())
    n = len(images)
    return {
        f"{min(n, _SHOWN)} of {n} images": picture,
        f"all of them, {tuple(images.shape)} in [-1, 1]": array,
    }
