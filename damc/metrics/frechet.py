"""Frechet distance (FID) and kernel distance (KID) between images, on features of any network.

Both are computed in float64 from the features. The Frechet distance compares means and
covariances, and is biased upwards when images are few; the kernel distance is unbiased and carries
an error bar.
"""

from __future__ import annotations

__all__ = [
    "Distance",
    "Statistics",
    "cached_statistics",
    "distances",
    "frechet_distance",
    "kernel_distance",
    "statistics",
]

import hashlib
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from damc.errors import BadInput, Diverged
from damc.metrics.features import Features

_KEPT = 5_000  # images whose features are kept for the kernel distance


@dataclass(frozen=True)
class Distance:
    """A distance between generated and real images, with all it takes to compare it fairly."""

    name: str
    """FID and KID for the Inception network only; else the features' name is part of this one."""
    value: float
    error: float | None
    """Standard error of the value, where one is known."""
    images: int
    """How many generated images were used."""
    real_images: int
    split: str
    """Which real images they were compared to."""
    resize: str
    features: str
    features_hash: str
    note: str
    """What to keep in mind, in words; empty when there is nothing."""


@dataclass(frozen=True)
class Statistics:
    """What the distances need to know of a set of images."""

    images: int
    mean: Tensor
    """Mean feature, (d,), float64."""
    covariance: Tensor
    """Covariance of the features, (d, d), float64."""
    kept: Tensor
    """Features of the first images (at most 5,000), (k, d), float32."""
    features: Features


def distances(samples: Statistics, real: Statistics, *, split: str) -> tuple[Distance, Distance]:
    """The Frechet and the kernel distance of generated images to real ones.

    Args:
        samples: statistics of the generated images.
        real: statistics of the real images, on the same features.
        split: which real images these are, for the record, such as "train".
    """
    features = real.features
    if samples.features.hash != features.hash:
        raise BadInput(
            "two sets of images must be compared on the same feature network, "
            f"got {samples.features.name} and {features.name} with different weights"
        )
    official = features.name.startswith("inception")
    value = frechet_distance(samples.mean, samples.covariance, real.mean, real.covariance)
    frechet = Distance(
        name="FID" if official else f"{features.name} Frechet distance",
        value=value,
        error=None,
        images=samples.images,
        real_images=real.images,
        split=split,
        resize=features.resize,
        features=features.name,
        features_hash=features.hash,
        note=_note(min(samples.images, real.images), features.dim, official),
    )
    value, error = kernel_distance(samples.kept, real.kept)
    kernel = Distance(
        name="KID" if official else f"{features.name} kernel distance",
        value=value,
        error=error,
        images=len(samples.kept),
        real_images=len(real.kept),
        split=split,
        resize=features.resize,
        features=features.name,
        features_hash=features.hash,
        note="",
    )
    return frechet, kernel


def frechet_distance(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> float:
    """Frechet distance of two Gaussians: `|m_a - m_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2))`.

    The trace of the root is that of `(R S_b R)^(1/2)` with `R = S_a^(1/2)`, which is symmetric and
    so needs no general matrix root (Dowson and Landau, 1982; Heusel et al., 2017).

    Args:
        mean_a: (d,).
        cov_a: (d, d).
        mean_b: (d,).
        cov_b: (d, d).
    """
    m_a, s_a, m_b, s_b = (t.double().cpu() for t in (mean_a, cov_a, mean_b, cov_b))
    variances, vectors = torch.linalg.eigh(s_a)
    root = vectors * variances.clamp_min(0).sqrt() @ vectors.T
    trace = torch.linalg.eigvalsh(root @ s_b @ root).clamp_min(0).sqrt().sum()
    return float((m_a - m_b).square().sum() + s_a.trace() + s_b.trace() - 2 * trace)


def kernel_distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Squared maximum mean discrepancy with the kernel `(x.y / d + 1)^3`, unbiased, and its error.

    On Inception features this is the kernel Inception distance (Binkowski et al., Demystifying MMD
    GANs, 2018). All pairs are used, not random subsets, so the value is not random given the
    features; the error is the jackknife's, leaving out one image at a time.

    Args:
        a: features of the first images, (n, d), n at least 3.
        b: features of the second images, (m, d), m at least 3.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 3:
        raise BadInput(
            "a kernel distance needs (n, d) and (m, d) features of at least 3 images each, "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    a, b = a.double(), b.double()
    n, m = len(a), len(b)
    aa, bb = _within(a), _within(b)
    ab, ba = _across(a, b)
    s_aa, s_bb, s_ab = aa.sum(), bb.sum(), ab.sum()

    within_a, within_b = s_aa / (n * (n - 1)), s_bb / (m * (m - 1))
    value = within_a + within_b - 2 * s_ab / (n * m)
    less_a = (s_aa - 2 * aa) / ((n - 1) * (n - 2)) - 2 * (s_ab - ab) / ((n - 1) * m)
    less_b = (s_bb - 2 * bb) / ((m - 1) * (m - 2)) - 2 * (s_ab - ba) / (n * (m - 1))
    variance = less_a.var() * (n - 1) ** 2 / n + less_b.var() * (m - 1) ** 2 / m
    return float(value), float(variance.sqrt())


def statistics(
    images: Tensor | Iterable[Tensor], features: Features, *, batch_size: int = 20
) -> Statistics:
    """Mean, covariance and some features of a set of images, in one pass and little memory.

    Args:
        images: images in [-1, 1], (n, C, H, W), or an iterable of batches of them; wrap it to see
            progress.
        features: the feature network.
        batch_size: images that go through the network at once.
    """
    d = features.dim
    total = torch.zeros(d, dtype=torch.float64)
    products = torch.zeros(d, d, dtype=torch.float64)
    shift: Tensor | None = None
    kept: list[Tensor] = []
    n = 0
    for batch in _batches(images, batch_size):
        y = features(batch).cpu().double()
        if not bool(y.isfinite().all()):
            raise Diverged(
                f"the {features.name} features of images {n} to {n + len(y)} are not finite"
            )
        if n < _KEPT:
            kept.append(y[: _KEPT - n].float())
        # Sums around the first batch's mean lose no digits when features are large and vary little.
        shift = y.mean(0) if shift is None else shift
        y = y - shift
        total += y.sum(0)
        products += y.T @ y
        n += len(y)
    if shift is None or n < 3:
        raise BadInput(f"distances between sets of images need at least 3 images, got {n}")
    mean = total / n
    covariance = (products - n * torch.outer(mean, mean)) / (n - 1)
    return Statistics(n, mean + shift, covariance, torch.cat(kept), features)


def cached_statistics(
    images: Tensor | Iterable[Tensor],
    features: Features,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = 20,
) -> Statistics:
    """`statistics`, kept in a folder under the hash of the images' content and of the network.

    Args:
        images: as in `statistics`, but able to be read twice: a tensor, a list or a data loader.
        folder: where the `.npz` files are kept; made if missing.
    """
    if isinstance(images, Iterator):
        raise BadInput(
            "cached statistics read the images twice, so images must be a tensor, list or loader, "
            "got an iterator"
        )
    digest = hashlib.sha256(f"1 {features.name} {features.hash}".encode())
    for batch in _batches(images, batch_size):
        for image in batch.detach().cpu():
            digest.update(f"{image.dtype} {tuple(image.shape)}".encode())
            digest.update(image.contiguous().numpy().tobytes())
    file = Path(folder) / f"{digest.hexdigest()}.npz"
    found = _load(file, features) if file.exists() else None
    if found is None:
        found = statistics(images, features, batch_size=batch_size)
        _save(file, found)
    return found


def _batches(images: Tensor | Iterable[Tensor], batch_size: int) -> Iterator[Tensor]:
    if batch_size < 1:
        raise BadInput(f"batch_size must be at least 1, got {batch_size}")
    for part in [images] if isinstance(images, Tensor) else images:
        yield from torch.split(part, batch_size)


def _note(images: int, dim: int, official: bool) -> str:
    if images < 5 * dim:
        return (
            f"{images:,} images are too few for a stable Frechet distance on {dim:,} features: "
            "the value is biased upwards; compare it only with values of as many images, "
            "or use the kernel distance, which is unbiased."
        )
    if official and images < 50_000:
        return f"published FIDs use 50,000 images; this one uses {images:,} and is slightly higher."
    return ""


def _within(x: Tensor) -> Tensor:
    """Sum of the kernel of each point with all other points of its set, (n,)."""
    own = (x.square().sum(1) / x.shape[1] + 1) ** 3
    return _across(x, x)[0] - own


def _across(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the kernel of each point of a over b, (n,), and of each point of b over a, (m,)."""
    rows, columns = [], torch.zeros(len(b), dtype=b.dtype, device=b.device)
    for block in torch.split(a, 1000):
        k = (block @ b.T / a.shape[1] + 1) ** 3
        rows.append(k.sum(1))
        columns += k.sum(0)
    return torch.cat(rows), columns


def _save(file: Path, stats: Statistics) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(
                stream,
                images=np.int64(stats.images),
                mean=stats.mean.numpy(),
                covariance=stats.covariance.numpy(),
                kept=stats.kept.numpy(),
            )
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink()
        raise


def _load(file: Path, features: Features) -> Statistics | None:
    try:
        with np.load(file, allow_pickle=False) as data:
            mean, covariance, kept = (
                torch.from_numpy(data[key]) for key in ("mean", "covariance", "kept")
            )
            return Statistics(int(data["images"]), mean, covariance, kept, features)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        warnings.warn(f"{file} cannot be read ({error}) and is computed again.", stacklevel=3)
        return None
