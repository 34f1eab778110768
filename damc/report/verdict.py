"""One sentence about a trained model: what its numbers mean, and what to do about it."""

from __future__ import annotations

__all__ = ["verdict"]

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def verdict(
    table: Mapping[str, Any],
    energies: Mapping[str, Tensor] | None = None,
    training_mse: float | None = None,
) -> str:
    """What a run's results mean, in one or two sentences.

    A model is compared with the mean image, which needs no learning; on unseen images it should
    err less than half as much. Energies of samples should be those of data, within a standard
    deviation.

    Args:
        table: of `damc.tasks.summarize.summarize`.
        energies: at latent points, by where they come from; "data" are those of images.
        training_mse: the error on training images in the last iterations.
    """
    said = _reconstructions(table, training_mse)
    if said.startswith("Not trained"):
        return said  # whose energies say nothing yet
    return f"{said} {_energies(energies or {})}".rstrip()


def _reconstructions(table: Mapping[str, Any], training_mse: float | None) -> str:
    mse, baseline = table.get("mse"), table.get("mean_image_mse")
    if mse is None or not baseline:
        return "No verdict: the method reconstructs no images, or there were none to try it on."
    kind = str(table.get("evaluated_on", "unseen images"))
    if kind == "training images":
        return (
            f"No verdict on unseen images: all were trained on. Of those, the model leaves "
            f"{mse / baseline:.0%} of the mean image's error."
        )
    left = f"{mse / baseline:.0%} of the mean image's error on {kind}"
    if mse >= baseline:
        return f"Not trained: the model leaves {left}, no better than no model. Train it longer."
    if mse > baseline / 2:
        start = f"Weak: the model leaves {left}."
    else:
        start = f"Learned: the model leaves {left}."
    if training_mse is not None and mse > 2 * training_mse:
        start += (
            f" It errs {mse / training_mse:.1f} times as much there as on training images: more "
            "images would help more than more iterations."
        )
    elif mse > baseline / 2:
        start += " More iterations, or more latent dimensions, would help."
    return start


def _energies(energies: Mapping[str, Tensor]) -> str:
    data = energies.get("data")
    others = {name: e for name, e in energies.items() if name not in ("data", "gaussian")}
    if data is None or len(data) < 2 or not others:
        return ""
    spread = float(data.std()) or 1.0
    off = {name: (float(e.mean()) - float(data.mean())) / spread for name, e in others.items()}
    wrong = [f"{name} ({by:+.1f})" for name, by in off.items() if abs(by) > 1]
    if not wrong:
        return "Samples have the energies of data, within a standard deviation."
    return (
        f"Samples from {' and '.join(wrong)} do not have the energies of data (in standard "
        "deviations): look at them before using them."
    )
