"""Reconstruct images with a trained model, and measure the errors."""

from __future__ import annotations

__all__ = ["Reconstruction", "reconstruct", "reconstruct_run"]

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import BadInput, Diverged
from damc.learn.learner import Learner
from damc.metrics.images import mse, psnr
from damc.report import plots
from damc.report.results import write_results
from damc.tasks.trained import Subjects, Trained


@dataclass(frozen=True)
class Reconstruction:
    """The first images with their reconstructions, and the errors of all.

    Attributes:
        x: the first images, (K, C, H, W).
        y: their reconstructions, (K, C, H, W).
        mse: squared error per pixel and channel of every image, in the scale [-1, 1], (N,).
        psnr: in decibels, (N,).
        mean_image_mse: the error of the mean of all images as everyone's reconstruction, the
            baseline.
    """

    x: Tensor
    y: Tensor
    mse: Tensor
    psnr: Tensor
    mean_image_mse: float

    @property
    def table(self) -> dict[str, Any]:
        """The numbers, with the standard error of the mean error."""
        n = len(self.mse)
        return {
            "images": n,
            "mse": float(self.mse.mean()),
            "mse_standard_error": float(self.mse.std() / n**0.5) if n > 1 else None,
            "psnr": float(self.psnr.mean()),
            "mean_image_mse": self.mean_image_mse,
        }


def reconstruct(
    learner: Learner,
    images: Images | Sequence[Images],
    *,
    limit: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    batch: int = 250,
    show: int = 32,
    progress: bool = False,
) -> Reconstruction:
    """Infers z for every image and decodes it.

    Args:
        learner: a trained learner.
        images: one set of images, or several of one shape.
        limit: only this many images, the first.
        steps: posterior moves after the amortizer's draw; the settings' number by default.
        seed: one seed gives the same reconstructions again.
        batch: how many are inferred together, which bounds the memory.
        show: how many to keep for a picture.
        progress: show a progress bar.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"n must be at least 1, got {limit}")
    if steps is not None and steps < 0:
        raise BadInput(f"steps must be at least 0, got {steps}")
    if learner.inference is None:
        raise BadInput(f"the learner must have inference to reconstruct, got {learner.name}")
    if steps is not None and learner.inference != "chain":
        raise BadInput(
            f"steps must be left out, as {learner.name} infers without posterior moves, got {steps}"
        )
    # Left out where it is not given: a learner of one's own may reconstruct without it.
    options: dict[str, Any] = {} if steps is None else {"steps": steps}
    sets = [images] if isinstance(images, Images) else list(images)
    places = [(s, i) for s in sets for i in range(0, len(s), batch)]
    device = learner.device
    generator = torch.Generator(device).manual_seed(seed)
    left = sum(map(len, sets)) if limit is None else limit
    xs, ys, errors, ratios = [], [], [], []
    total, squares, count = torch.zeros(sets[0].shape).double(), 0.0, 0
    for held, start in _bar(places, progress):
        index = torch.arange(start, min(start + batch, len(held), start + left))
        if not len(index):
            break
        left -= len(index)
        x = held.batch(index)
        y = learner.reconstruct(x.to(device), generator=generator, **options).cpu()
        if not bool(torch.isfinite(y).all()):
            raise Diverged("reconstructions are not finite")
        y = y.clamp(-1, 1)
        if count < show:
            xs.append(x[: show - count])
            ys.append(y[: show - count])
        errors.append(mse(x, y))
        ratios.append(psnr(x, y))
        total += x.double().sum(0)
        squares += float(x.double().square().sum())
        count += len(x)
    spread = squares / (count * total.numel()) - float((total / count).square().mean())
    return Reconstruction(
        torch.cat(xs), torch.cat(ys), torch.cat(errors), torch.cat(ratios), max(spread, 0.0)
    )


def reconstruct_run(
    trained: Trained,
    subjects: Subjects,
    folder: str | Path,
    *,
    limit: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> tuple[Reconstruction, dict[str, Path]]:
    """Reconstructs images with a run, and writes ``reconstructions.png`` and ``results.json``.

    Args:
        trained: the run.
        subjects: the images, as `Trained.subjects` gives them.
        folder: where to write.
        limit, steps, seed, progress: those of `reconstruct`.

    Returns:
        The reconstruction, and the files by caption.
    """
    start = time.monotonic()
    found = reconstruct(
        trained.learner, subjects.sets, limit=limit, steps=steps, seed=seed, progress=progress
    )
    folder = Path(folder)
    picture = plots.paired_grid(found.x, found.y, folder / "reconstructions.png")
    results = {
        "run": trained.run.path,
        "iteration": trained.learner.iteration,
        "evaluated_on": subjects.kind,
        "note": subjects.note,
        **found.table,
        "seconds": round(time.monotonic() - start, 2),
        "mse_of_each": found.mse.tolist(),
        "psnr_of_each": found.psnr.tolist(),
    }
    return found, {
        f"the first {len(found.x)}, originals above": picture,
        "the table, and the error of each image": write_results(folder, results),
    }


def _bar(places: list[tuple[Images, int]], show: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(places, desc="reconstruct", disable=not show, dynamic_ncols=True)
