"""Numbers that say how good samples, reconstructions, scores and chains are."""

from __future__ import annotations

__all__ = [
    "Detection",
    "Distance",
    "Features",
    "Statistics",
    "auprc",
    "auroc",
    "average_precision",
    "c2st",
    "c2st_many",
    "cached_statistics",
    "detection_scores",
    "distances",
    "energy_distance",
    "ess",
    "frechet_distance",
    "inception",
    "kernel_distance",
    "lowest_auprc",
    "mmd",
    "mse",
    "permutation_test",
    "pixel_pca",
    "psnr",
    "rhat",
    "statistics",
]

from damc.metrics.chains import ess, rhat
from damc.metrics.detection import (
    Detection,
    auprc,
    auroc,
    average_precision,
    detection_scores,
    lowest_auprc,
)
from damc.metrics.features import Features, inception, pixel_pca
from damc.metrics.frechet import (
    Distance,
    Statistics,
    cached_statistics,
    distances,
    frechet_distance,
    kernel_distance,
    statistics,
)
from damc.metrics.images import mse, psnr
from damc.metrics.two_sample import c2st, c2st_many, energy_distance, mmd, permutation_test
