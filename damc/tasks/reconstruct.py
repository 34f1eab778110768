"""Images as a trained model sees them, and how far off they are."""

from __future__ import annotations

__all__ = ["Reconstruction", "reconstruct"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from damc.data import Images
from damc.errors import BadInput, Diverged
from damc.learn import Learner
from damc.metrics.images import mse, psnr


@dataclass(frozen=True)
class Reconstruction:
    """The first images with their reconstructions, and the errors of all.

    Attributes:
        x: the first images, (K, C, H, W).
        y: their reconstructions, (K, C, H, W).
        mse: squared error per pixel and channel of every image, in the scale [-1, 1], (N,).
        psnr: in decibels, (N,).
        mean_image_mse: the error of answering every image with the mean of them all, the level
            that a reconstruction has to beat.
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
        limit: only the first so many.
        steps: posterior moves after the amortizer's draw; the settings' number by default.
        seed: one seed gives the same reconstructions again.
        batch: how many are inferred together, which bounds the memory.
        show: how many to keep for a picture.
        progress: show a progress bar.
    """
    if (limit is not None and limit < 1) or (steps is not None and steps < 0):
        raise BadInput(f"n is {limit} and steps {steps}: at least 1 image and 0 steps are wanted")
    if steps is not None and learner.inference != "chain":
        raise BadInput(f"{learner.name} infers without posterior moves: leave steps out")
    sets = [images] if isinstance(images, Images) else list(images)
    places = [(s, i) for s in sets for i in range(0, len(s), batch)]
    device = learner.device
    generator = torch.Generator(device).manual_seed(seed)
    options: dict[str, Any] = {} if steps is None else {"steps": steps}
    left = sum(map(len, sets)) if limit is None else limit
    xs, ys, errors, ratios = [], [], [], []
    total, squares, count = torch.zeros(sets[0].shape).double(), 0.0, 0
    for held, start in _bar(places, progress):
        index = torch.arange(start, min(start + batch, len(held), start + left))
        if not len(index):
            break
        left -= len(index)
        x = held.batch(index)
        y = learner.reconstruct(x.to(device), generator=generator, **options).detach().cpu()
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


def _bar(places: list[tuple[Images, int]], show: bool) -> Any:
    from tqdm import tqdm

    return tqdm(places, desc="reconstruct", disable=not show, dynamic_ncols=True)
