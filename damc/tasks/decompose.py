"""Which part of a model is behind: the decoder, the amortizer's q(z), or the energy.

Decoded posterior samples of training images show the decoder alone: a sampler of z that matched
the aggregate posterior exactly would do as well. What samples of another source lose against
them, that source of z loses. Gaussians fitted to the same posterior samples are the least that a
learned one has to beat.
"""

from __future__ import annotations

__all__ = ["DECODER", "FITTED", "behind", "posterior_images"]

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from damc.amortize.mixture import GaussianMixture
from damc.data import Images
from damc.errors import BadInput
from damc.learn.learner import Learner

DECODER = "posterior samples, decoded"
"""The row that only the decoder decides."""

FITTED = {"one Gaussian fitted to posterior samples": 1, "10 Gaussians fitted to them": 10}
"""Rows of densities fitted to the posterior samples, and their numbers of components."""

_FITTED_TO = 4  # posterior samples for each image that is drawn


@torch.no_grad()
def posterior_images(
    learner: Learner, train: Images, n: int, *, after: int, seed: int, batch: int = 250
) -> Iterator[tuple[str, Tensor]]:
    """Images that show what the decoder can do, and what simple densities of z would, by row.

    Args:
        learner: a trained learner with inference.
        train: the images it learned from.
        n: how many images each row has, at most.
        after: skip the first so many training images, since distances are to those; the last n
            are used if fewer are left.
        seed: of all draws.
        batch: how many are inferred together.

    Returns:
        Pairs of a row's name and its images, ``(n, C, H, W)``.
    """
    if learner.inference is None:
        raise BadInput(f"the learner must be one that can infer, got {learner.name}")
    generator = torch.Generator(learner.device).manual_seed(seed)
    n = min(n, len(train))
    first = max(0, min(after, len(train) - n))
    places = torch.arange(first, min(first + _FITTED_TO * n, len(train)))
    found = []
    for part in torch.split(places, batch):
        x = train.batch(part).to(learner.device)
        found.append(learner.infer(x, noise=True, generator=generator))
    z = torch.cat(found)
    yield DECODER, _decoded(learner, z[:n], batch)
    for name, components in FITTED.items():
        drawn = GaussianMixture.fit(z, components).sample(n, generator)
        yield name, _decoded(learner, drawn, batch)


def behind(kernel: Mapping[str, float], sources: Mapping[str, str]) -> str:
    """One sentence: the decoder's own distance, and what each source of z adds to it.

    Args:
        kernel: kernel distances by row.
        sources: rows of sources of z, by the source's name.
    """
    decoder = kernel[DECODER]
    added = [f"{name} {kernel[row] - decoder:+.4f}" for name, row in sources.items()]
    fitted = [
        f"{count} Gaussian{'s' * (count > 1)} {kernel[row] - decoder:+.4f}"
        for row, count in FITTED.items()
    ]
    return (
        f"Kernel distance of the decoder alone: {decoder:.4f}; what sources of z add to it: "
        f"{', '.join([*added, *fitted])}."
    )


def _decoded(learner: Learner, z: Tensor, batch: int) -> Tensor:
    return torch.cat([learner.decode(part).cpu() for part in torch.split(z, batch)])
