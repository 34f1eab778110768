"""Make a small model for others out of a run: as few bits a weight as lose nothing, and a card."""

from __future__ import annotations

__all__ = ["Packaged", "package_run"]

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from damc.errors import BadInput
from damc.hub.published import FILES, packed, read_config, unpacked
from damc.learn import Learner
from damc.tasks.reconstruct import reconstruct
from damc.tasks.trained import Trained

TOLERANCE = 0.01
"""By how much, relatively, the error on unseen images may rise for fewer bits to be taken."""


@dataclass(frozen=True)
class Packaged:
    """What `package_run` wrote.

    Attributes:
        folder: the model.
        bytes: the size of its files together.
        bits: of a stored weight.
        results: the error on unseen images with 32, 16 and 8 bits, and what the run had measured.
        sha256: of the weights.
    """

    folder: Path
    bytes: int
    bits: int
    results: dict[str, Any]
    sha256: str


def package_run(
    trained: Trained,
    folder: str | Path,
    *,
    megabytes: float = 5.0,
    limit: int = 500,
) -> Packaged:
    """Writes the model of a run into a folder that `damc.load` reads.

    The weights are stored in 16 bits if the error of reconstructions of unseen images, with the
    same seed, stays within `TOLERANCE`, and in 8 bits under the same condition if the model would
    be too large otherwise. A run without unseen images or inference keeps 32 bits.

    Args:
        trained: the run.
        folder: the folder to make; an existing model in it is replaced.
        megabytes: refuse a larger model.
        limit: how many unseen images are reconstructed.
    """
    folder, learner = Path(folder), trained.learner
    if folder.exists() and any(path.name not in FILES for path in folder.iterdir()):
        raise BadInput(f"folder must be new or hold a published model, got {folder}")
    known = dict(learner.provenance.get("results") or {})
    errors = _errors(trained, learner, limit)
    for bits in (16, 8) if errors else (32,):
        if errors and errors[bits] > (1 + TOLERANCE) * errors[32]:
            continue
        results = known | {f"mse, {b} bits": error for b, error in errors.items()}
        learner.provenance = {**learner.provenance, "results": results}
        learner.save(folder, bits=bits)
        size = sum((folder / name).stat().st_size for name in FILES)
        if size <= megabytes * 1e6:
            return Packaged(folder, size, bits, results, read_config(folder)["sha256"])
        shutil.rmtree(folder)
    raise BadInput(
        f"a packaged model must have at most {megabytes:g} MB without a loss, got "
        f"{trained.run.path}, which has more: train smaller networks, or give --megabytes"
    )


def _errors(trained: Trained, learner: Learner, limit: int) -> dict[int, float]:
    """MSE per pixel of unseen images by the number of bits; empty if it cannot be measured."""
    if trained.unseen is None or learner.inference is None:
        return {}
    images = trained.unseen.images
    kept = {name: t.clone() for name, t in learner.state_dict().items()}
    errors: dict[int, float] = {}
    try:
        for bits in (32, 16, 8):
            learner.load_state_dict(unpacked(packed(kept, bits)))
            errors[bits] = float(reconstruct(learner, images, limit=limit, seed=0).table["mse"])
    finally:
        learner.load_state_dict(kept)
    return errors
