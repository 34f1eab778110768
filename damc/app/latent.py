"""What the page does with a trained model: samples, walks along a chain, posterior samples."""

from __future__ import annotations

__all__ = [
    "Posterior",
    "as_digit",
    "as_image",
    "compare_sources",
    "posterior_samples",
    "shape_of",
    "walk",
]

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.data.pictures import fit
from damc.errors import BadInput
from damc.kernels.langevin import Langevin
from damc.learn.learner import Learner
from damc.tasks.generate import generate

MOST_IMAGES = 64
MOST_STEPS = 2000
_FRAMES = 25  # of a walk
_INK = 20 / 28  # of a digit's square that its longer side fills, as in MNIST


@dataclass(frozen=True)
class Posterior:
    """Samples of p(z | x), decoded.

    Attributes:
        x: the image as the model gets it, ``(1, C, H, W)``.
        samples: ``(K, C, H, W)``.
        mse: squared error of their mean per pixel, in the scale [-1, 1].
        distance: between the samples' latent points, their mean distance over sqrt(2 d): 1 if the
            posterior is as wide as N(0, I), 0 if it is a point.
    """

    x: Tensor
    samples: Tensor
    mse: float
    distance: float

    @property
    def mean(self) -> Tensor:
        """Of the samples, ``(1, C, H, W)``."""
        return self.samples.mean(0, keepdim=True)

    @property
    def spread(self) -> Tensor:
        """Standard deviation of every pixel, mean over channels, ``(1, H, W)``."""
        return self.samples.std(0).mean(0, keepdim=True)


def compare_sources(
    learner: Learner, n: int = 16, steps: int | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """Samples by every source of a model, ``(n, C, H, W)`` each, in [-1, 1].

    Args:
        learner: the model.
        n: how many of each.
        steps: Langevin moves of "energy"; the model's own number if not given.
        seed: of the samples.
    """
    _between("n", n, 1, MOST_IMAGES)
    _between("seed", seed, 0, 2**31 - 1)
    if steps is not None:
        _between("steps", steps, 0, MOST_STEPS)
    wanted = [source for source in ("amortizer", "energy") if source in learner.sources]
    return {
        source: generate(
            learner, n, source=source, steps=steps if source == "energy" else None, seed=seed
        )
        for source in wanted or learner.sources[:1]
    }


def walk(
    learner: Learner, chains: int = 8, steps: int = 200, seed: int = 0
) -> Iterator[tuple[int, float, Tensor]]:
    """Langevin chains on the learned prior from N(0, I), decoded on the way.

    Yields:
        The step, the mean energy, and the images, ``(chains, C, H, W)``.
    """
    _between("chains", chains, 1, MOST_IMAGES)
    _between("steps", steps, 1, MOST_STEPS)
    _between("seed", seed, 0, 2**31 - 1)
    model, prior = learner.model, learner.prior
    if model is None or prior is None or prior.energy is None:
        raise BadInput(f"the model must have an energy to walk on, got one of {learner.name}")
    generator = torch.Generator(learner.device).manual_seed(seed)
    like = next(learner.parameters())
    kernel = Langevin(float(learner.settings.prior_step_size))
    z = like.new_empty(chains, model.latent_dim).normal_(generator=generator)
    state = kernel.init(z)
    before = 0
    for stop in sorted({round(steps * k / _FRAMES) for k in range(_FRAMES + 1)}):
        state, _ = kernel.run(state, prior, generator, steps=stop - before)
        before = stop
        with torch.no_grad():
            energy = float(prior.energy(state.z).mean())
            yield stop, energy, learner.decode(state.z).clamp(-1, 1).cpu()


def posterior_samples(
    learner: Learner, x: Tensor, n: int = 8, steps: int | None = None, seed: int = 0
) -> Posterior:
    """Samples of p(z | x) of one image, decoded.

    Args:
        learner: a model that infers.
        x: the image, ``(1, C, H, W)`` in [-1, 1].
        n: how many samples.
        steps: Langevin moves on the posterior; the model's own number if not given.
        seed: of the samples.
    """
    _between("n", n, 2, MOST_IMAGES)
    _between("seed", seed, 0, 2**31 - 1)
    if steps is not None:
        _between("steps", steps, 0, MOST_STEPS)
    if learner.inference is None:
        raise BadInput(f"the model must infer latent points, got one of {learner.name}")
    generator = torch.Generator(learner.device).manual_seed(seed)
    repeated = x.to(learner.device).expand(n, -1, -1, -1)
    chain: dict[str, Any] = {"steps": steps, "noise": True} if learner.inference == "chain" else {}
    with torch.no_grad():
        z = learner.infer(repeated, generator=generator, **chain)
        samples = learner.decode(z).clamp(-1, 1).cpu()
    error = float((samples.mean(0) - x[0].cpu()).square().mean())
    distance = float(torch.pdist(z.flatten(1).cpu()).mean()) / (2 * z[0].numel()) ** 0.5
    return Posterior(x.cpu(), samples, error, distance)


def shape_of(learner: Learner) -> tuple[int, int, int]:
    """(C, H, W) of the images that a model is of."""
    if learner.networks is None:
        raise BadInput("the model must be of networks that damc built, got your own modules")
    c, h, w = learner.networks.shape
    return c, h, w


def as_image(pixels: NDArray[Any], shape: tuple[int, int, int], invert: bool = False) -> Tensor:
    """A picture ``(C, H, W)`` of bytes as a model takes it, ``(1, C, H, W)`` in [-1, 1].

    Args:
        pixels: the picture, any size.
        shape: that the model is of.
        invert: take light for dark.
    """
    fitted = fit(pixels, "the picture", size=shape[1], channels=shape[0])
    image = torch.from_numpy(np.ascontiguousarray(fitted)).float() / 127.5 - 1
    return (-image if invert else image)[None]


def as_digit(ink: NDArray[Any], shape: tuple[int, int, int]) -> Tensor:
    """A drawing as MNIST holds digits, ``(1, C, H, W)`` in [-1, 1]: light on dark, of its size,
    with its center of mass in the middle.

    Args:
        ink: how much ink is at each place, ``(H, W)`` in [0, 255].
        shape: that the model is of.
    """
    rows, columns = np.nonzero(ink > 20)
    if not len(rows):
        raise BadInput("a digit must be drawn first, got an empty drawing")
    cut = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    side = max(cut.shape)
    square = np.zeros((side, side), np.uint8)
    top, left = (side - cut.shape[0]) // 2, (side - cut.shape[1]) // 2
    square[top : top + cut.shape[0], left : left + cut.shape[1]] = cut
    size = max(1, round(shape[1] * _INK))
    small = fit(square[None], "the drawing", size=size)[0].astype(np.float32)
    total = small.sum()
    middle = [float((np.indices(small.shape)[k] * small).sum() / total) for k in (0, 1)]
    whole = np.zeros(shape[1:], np.float32)
    at = [
        int(np.clip(round((shape[k + 1] - 1) / 2 - middle[k]), 0, shape[k + 1] - size))
        for k in (0, 1)
    ]
    whole[at[0] : at[0] + size, at[1] : at[1] + size] = small
    return torch.from_numpy(whole / 127.5 - 1).expand(1, *shape).clone()


def _between(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"{name} must lie between {least:,} and {most:,}, got {value:,}")
