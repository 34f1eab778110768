"""Quality of samples and reconstructions of a trained method, for the cells of several tables."""

from __future__ import annotations

__all__ = ["LIKELIHOODS", "MEASURES", "Quality", "remark"]

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from damc.data import Images
from damc.learn.learner import Learner
from damc.metrics.features import Features
from damc.metrics.frechet import Statistics, cached_statistics, distances, statistics
from damc.paper.table import Measure, Options
from damc.tasks.evaluate import choose_features
from damc.tasks.generate import stream
from damc.tasks.likelihood import has_density, likelihood

MEASURES = (
    Measure("kernel", "kernel distance"),
    Measure("frechet", "Frechet distance"),
    Measure("mse", "test MSE"),
    Measure("kernel_energy", "kernel distance, by the energy"),
    Measure("frechet_energy", "Frechet distance, by the energy"),
    Measure("iterations", "iterations", lower=False),
    Measure("seconds", "seconds"),
    Measure("cpu_seconds", "CPU seconds"),
)
"""The figures of `Quality.of`, and the cost of training."""

LIKELIHOODS = (
    Measure("log_prob", "test log p(x), nats", lower=False),
    Measure("log_normalizer", "log Z of the prior", lower=False),
)
"""The figures of `Quality.likelihood`, which take longer."""

_BATCH = 20  # images that go through a feature network at once
_REAL = 2000  # training images that samples are compared with
_RECONSTRUCTED = 1000
_LIKELIHOOD = 32  # test images whose log p(x) is estimated


@dataclass(frozen=True)
class Quality:
    """Real images that samples and reconstructions are compared with, on chosen features."""

    features: Features
    real: Statistics
    images: int
    unseen: Tensor

    @classmethod
    def against(
        cls, train: Images, unseen: Images, options: Options, cache: Path, images: int
    ) -> Quality:
        """Statistics of the first training images, kept in `cache` for the next cell."""
        features = choose_features(options.features or "pixel-pca", train, path=options.inception)
        shown = train.batch(torch.arange(min(_REAL, len(train))))
        real = cached_statistics(shown, features, cache, batch_size=_BATCH)
        test = unseen.batch(torch.arange(min(_RECONSTRUCTED, len(unseen))))
        return cls(features, real, images, test)

    def of(self, learner: Learner, seed: int) -> dict[str, float]:
        """Distances of samples from the first source and from the energy, and the test error."""
        figures = {}
        sources = {"": learner.sources[0]}
        if "energy" in learner.sources[1:]:
            sources["_energy"] = "energy"
        for suffix, source in sources.items():
            frechet, kernel = self.distance(learner, source, seed)
            figures[f"frechet{suffix}"] = frechet
            figures[f"kernel{suffix}"] = kernel
        if learner.inference is not None:
            figures["mse"] = self.error(learner, seed)
        return figures

    def likelihood(self, learner: Learner, seed: int) -> dict[str, float]:
        """log p(x) of test images, and log Z of the prior; empty for a method without a density."""
        if not has_density(learner):
            return {}
        found = likelihood(learner, self.unseen[:_LIKELIHOOD], seed=seed)
        figures = {"log_prob": found.log_prob}
        if learner.prior is not None:
            figures["log_normalizer"] = found.log_normalizer
        return figures

    def distance(self, learner: Learner, source: str, seed: int) -> tuple[float, float]:
        """Frechet and kernel distance of samples to the training images."""
        drawn = (
            part.clamp(-1, 1) for part in stream(learner, self.images, source=source, seed=seed)
        )
        found = statistics(drawn, self.features, batch_size=_BATCH)
        frechet, kernel = distances(found, self.real, split="train")
        return frechet.value, kernel.value

    @torch.no_grad()
    def error(self, learner: Learner, seed: int, source: str | None = None) -> float:
        """Squared error per pixel of reconstructed test images, inferred by `source`."""
        generator = torch.Generator(learner.device).manual_seed(seed)
        errors = []
        for part in torch.split(self.unseen.to(learner.device), 250):
            image = learner.decode(learner.infer(part, source=source, generator=generator))
            errors.append((image - part).square().flatten(1).mean(1))
        return float(torch.cat(errors).mean())


def remark(options: Options, images: int) -> str:
    """How the distances of a table were measured."""
    features = options.features or "pixel-pca"
    name = (
        "the FID Inception network, so that they are FID and KID"
        if features == "inception"
        else "64 principal components of pixels, so that they are not FID"
    )
    return f"Distances are between {images:,} samples and {_REAL:,} training images on {name}."
