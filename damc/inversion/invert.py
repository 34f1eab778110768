"""Invert sets of images by one method: errors, tables, and the files with the codes."""

from __future__ import annotations

__all__ = ["Found", "decoder_images", "figures", "invert_images", "write_found"]

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from damc.data import Images
from damc.disk import write_atomically
from damc.errors import BadInput
from damc.inversion.learner import Inversion
from damc.inversion.methods import Inverted, invert, problem_of
from damc.inversion.problem import Problem
from damc.metrics.features import Features
from damc.metrics.frechet import distances, statistics
from damc.report import plots


@dataclass(frozen=True)
class Found:
    """Inversions of a set of images by one method.

    Attributes:
        x: the images, ``(N, C, H, W)``.
        inverted: their codes, images, errors and posterior samples.
        seconds: how long it took.
        perceptual_name: the perceptual network of `inverted.perceptual`, or "none, pixels alone".
    """

    x: Tensor
    inverted: Inverted
    seconds: float
    perceptual_name: str

    @property
    def table(self) -> dict[str, Any]:
        """The numbers of the method: means over images."""
        found = self.inverted
        n = len(found.mse)
        table: dict[str, Any] = {
            "method": found.method,
            "images": n,
            "mse": float(found.mse.mean()),
            "mse_standard_error": float(found.mse.std() / n**0.5) if n > 1 else None,
            "start_mse": float(found.start_mse.mean()),
            "perceptual_network": self.perceptual_name,
        }
        for name, values in self._extras().items():
            table[name] = float(values.mean())
        return {**table, "seconds": self.seconds}

    @property
    def rows(self) -> list[dict[str, float]]:
        """The numbers of every image."""
        found = self.inverted
        columns = {"mse": found.mse, "start_mse": found.start_mse, **self._extras()}
        return [
            {"image": i, **{name: float(values[i]) for name, values in columns.items()}}
            for i in range(len(found.mse))
        ]

    def _extras(self) -> dict[str, Tensor]:
        found = self.inverted
        known = {
            "perceptual": found.perceptual,
            "pixel_spread": found.pixel_spread,
            "code_spread": found.code_spread,
        }
        return {name: values for name, values in known.items() if values is not None}


def decoder_images(parts: Problem | Inversion, n: int, seed: int = 0, batch: int = 50) -> Tensor:
    """Images that the decoder makes from random codes, ``(n, C, H, W)``, which have exact inverses.

    Give another seed than to their inversion, whose random starts would be these codes, truncated.
    """
    if n < 1:
        raise BadInput(f"n must be at least 1, got {n}")
    problem = problem_of(parts)
    generator = torch.Generator(problem.mean.device).manual_seed(seed)
    z = problem.draw(n, generator)
    with torch.no_grad():
        return torch.cat([problem.decode(part) for part in torch.split(z, batch)]).cpu()


def invert_images(
    parts: Problem | Inversion,
    images: Images | Sequence[Images] | Tensor,
    method: str = "damc",
    *,
    limit: int | None = None,
    seed: int = 0,
    batch: int = 50,
    progress: bool = False,
    **options: Any,
) -> Found:
    """Inverts a set of images by one method: one cell of the paper's table.

    Args:
        parts: the decoder alone, for "opt", or the learner of an inversion run.
        images: one set, several of one shape, or a tensor ``(N, C, H, W)`` in [-1, 1].
        method: a name in `damc.inversion.methods.METHODS`.
        limit: only this many images, the first.
        seed: one seed gives the same codes again, for one batch size.
        batch: images inverted together.
        progress: show a progress bar, counting images.
        **options: further arguments of `damc.inversion.methods.invert`.
    """
    from tqdm.auto import tqdm

    for key, value in (("n", limit), ("batch", batch)):
        if value is not None and value < 1:
            raise BadInput(f"{key} must be at least 1, got {value}")
    x = _stack(images, limit)
    problem = problem_of(parts)
    problem.check_images(x)
    generator = torch.Generator(problem.mean.device).manual_seed(seed)
    start, found = time.monotonic(), []
    with tqdm(total=len(x), desc=method, disable=not progress, dynamic_ncols=True) as bar:
        for part in torch.split(x, batch):
            found.append(invert(parts, part, method, generator=generator, **options))
            bar.update(len(part))
    name = "none, pixels alone"
    if problem.perceptual is not None:
        name = f"{type(problem.perceptual).__name__} features, mean squared difference"
    return Found(x, _join(found), round(time.monotonic() - start, 2), name)


def figures(found: Found, features: Features | None = None) -> dict[str, float]:
    """The figures of a table's cell: "mse", its standard error, and those that are known.

    Args:
        found: what `invert_images` gave.
        features: of the Frechet distance between inversions and images, "frechet"; it is FID only
            on those of the Inception network.
    """
    chosen = {
        key: float(value)
        for key, value in found.table.items()
        if isinstance(value, float | int) and key not in ("images",)
    }
    if features is not None:
        pair = [
            statistics(torch.split(images.clamp(-1, 1), 20), features, batch_size=20)
            for images in (found.inverted.images, found.x)
        ]
        chosen["frechet"] = distances(pair[0], pair[1], split="the images inverted")[0].value
    return chosen


def write_found(found: Found, folder: str | Path, show: int = 32) -> dict[str, Path]:
    """Writes codes.npy, inversions.csv and the pictures into a folder; gives paths by caption.

    Args:
        found: what `invert_images` gave.
        folder: where to write.
        show: how many images are drawn, at most.
    """
    folder, result = Path(folder), found.inverted
    written = {"codes": _npy(folder / "codes.npy", result.codes)}
    if result.samples is not None:
        written["codes of posterior samples"] = _npy(folder / "samples.npy", result.samples)
    text = io.StringIO()
    rows = found.rows
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    written["every image"] = write_atomically(folder / "inversions.csv", text.getvalue())
    written["images above their inversions"] = plots.paired_grid(
        found.x[:show],
        result.images[:show],
        folder / "inversions.png",
        names=("image", "inversion"),
    )
    if result.sample_images is not None:
        written["posterior samples, and the spread of each pixel"] = _draw_samples(
            found, folder / "samples.png", min(show, 8)
        )
    return written


def _draw_samples(found: Found, path: Path, show: int) -> Path:
    samples = found.inverted.sample_images
    assert samples is not None
    spread = samples[:, :show].std(0)
    # Brightest where the samples differ most, over all the pictures shown.
    spread = 2 * spread / spread.max().clamp(min=1e-12) - 1
    drawn = samples[:6, :show]
    columns = [found.x[:show], found.inverted.images[:show], *drawn, spread]
    names = ["image", "inversion", *(f"sample {i + 1}" for i in range(len(drawn))), "spread"]
    return plots.strips(torch.stack(columns), path, times=names)


def _stack(images: Images | Sequence[Images] | Tensor, limit: int | None) -> Tensor:
    if isinstance(images, Tensor):
        return images[:limit]
    sets = [images] if isinstance(images, Images) else list(images)
    left = sum(map(len, sets)) if limit is None else limit
    parts: list[Tensor] = []
    for held in sets:
        index = torch.arange(min(left, len(held)))
        left -= len(index)
        parts.append(held.batch(index))
    return torch.cat(parts)


def _join(found: list[Inverted]) -> Inverted:
    def cat(name: str, dim: int = 0) -> Any:
        values = [getattr(part, name) for part in found]
        return None if values[0] is None else torch.cat(values, dim)

    return replace(
        found[0],
        **{name: cat(name) for name in ("codes", "images", "mse", "start_mse", "perceptual")},
        **{name: cat(name, 1) for name in ("samples", "sample_images")},
    )


def _npy(path: Path, tensor: Tensor) -> Path:
    buffer = io.BytesIO()
    np.save(buffer, tensor.numpy(), allow_pickle=False)
    return write_atomically(path, buffer.getvalue())
