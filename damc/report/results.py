"""The numbers of a command or task as ``results.json``, in the folder of its other files."""

from __future__ import annotations

__all__ = ["LABELS", "RESULTS", "labeled", "write_results"]

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from damc.disk import write_atomically

RESULTS = "results.json"
"""The name of the file."""

LABELS = {
    "iteration": "iterations",
    "mse": "MSE per pixel, in [-1, 1]",
    "mse_standard_error": "its standard error",
    "psnr": "PSNR, dB",
    "mean_image_mse": "MSE of the mean image",
    "evaluated_on": "evaluated on",
    "training_images": "training images",
    "resolution": "image size, pixels",
    "code": "code, layers x style",
    "decoder_parameters": "parameters of the decoder",
    "discriminator_parameters": "parameters of the discriminator",
    "samples": "samples compared",
    "pixel_pca_distance_samples": "pixel-PCA distance, samples",
    "pixel_pca_distance_test_images": "pixel-PCA distance, test images",
    "pixel_pca_distance_training_images": "pixel-PCA distance, training images",
    "seconds": "seconds of training",
    "images": "images evaluated",
}
"""Keys of ``results.json`` in words, for tables."""


def labeled(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results under their names in words, where they have one."""
    return {LABELS.get(key, key): value for key, value in results.items()}


def write_results(folder: str | Path, results: Mapping[str, Any]) -> Path:
    """Writes ``results.json`` into a folder; numbers that are not finite become null."""
    text = json.dumps(_plain(results), indent=2, allow_nan=False)
    return write_atomically(Path(folder) / RESULTS, text + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
