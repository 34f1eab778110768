"""How unusual images are under a learned model: named scores, higher is more anomalous.

Every score averages over posterior samples z of the image x, from `learner.infer`:

- "joint": -log p~(z, x), with the likelihood's own weight 1 / (2 sigma^2);
- "authors": |x - g(z)|^2 + E(z) + |z|^2 / 2, the score of the paper's code, whose error has weight
  1 whatever sigma is;
- "reconstruction": |x - g(z)|^2;
- "calibrated": how far the error of the reconstruction lies above that of normal images with as
  much detail; see `Calibration`;
- "own": the learner's own `anomaly_score`, for learners without a latent model.
"""

from __future__ import annotations

__all__ = ["SCORES", "Calibration", "error_and_detail", "score"]

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from damc.errors import BadInput
from damc.learn import Learner

SCORES = ("calibrated", "joint", "authors", "reconstruction", "own")
"""Every score by name."""

_PART = 500  # images whose chains run at a time
_SMOOTHED = 16  # pixels a side from which errors are smoothed


@torch.no_grad()
def score(
    learner: Learner,
    x: Tensor,
    kind: str = "joint",
    *,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """A score that needs no calibration, ``(B,)``.

    Args:
        learner: a trained learner.
        x: images, ``(B, C, H, W)`` in [-1, 1].
        kind: "joint", "authors", "reconstruction" or "own".
        samples: posterior samples that are averaged over.
        generator: source of all randomness.
    """
    if samples < 1:
        raise BadInput(f"a score averages over at least 1 sample, got {samples}")
    if kind == "calibrated":
        raise BadInput("the calibrated score is fitted to normal images first: Calibration.fit")
    if kind not in SCORES:
        raise BadInput(f"a score is one of {', '.join(SCORES)}, got {kind!r}")
    parts = [
        torch.stack([_once(learner, part, kind, generator) for _ in range(samples)]).mean(0)
        for part in torch.split(x, _PART)
    ]
    return torch.cat(parts)


@dataclass(frozen=True)
class Calibration:
    """What error is to be expected of a normal image, given how much detail it has.

    A model makes larger errors on images with more strokes, edges or texture, so a plain error
    mistakes busy normal images for anomalies and simple anomalies for normal images: held-out ones
    among MNIST's digits have the smallest errors of all. On normal images that were not trained on

        log e(x) = offset + slope log c(x) + spread noise

    is fitted by least squares, where e is the squared error of the reconstruction and c the
    image's total variation (see `error_and_detail`). The score is the standardised residual, with
    mean 0 and spread 1 on normal images, whatever the data; but an image with more detail than
    normal ones have is not excused for it: c counts up to `most`, their 99th percentile. The slope
    is drawn towards 2, which matters only where few images or equal details say little: an image
    of a times the contrast has a times the detail, and errors in proportion to it grow a^2 times.

    To correct a likelihood by the input's complexity is the idea of Serra et al., "Input complexity
    and out-of-distribution detection with likelihood-based generative models", ICLR 2020.
    """

    offset: float
    slope: float
    spread: float
    most: float

    @classmethod
    def fit(
        cls,
        learner: Learner,
        x: Tensor,
        *,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Calibration:
        """Fits the expected error to normal images ``(B, C, H, W)``, best ones not trained on."""
        if len(x) < 3:
            raise BadInput(f"a calibration needs at least 3 normal images, got {len(x)}")
        error, detail = error_and_detail(learner, x, samples=samples, generator=generator)
        return cls.of(error, detail)

    @classmethod
    def of(cls, error: Tensor, detail: Tensor) -> Calibration:
        """The least-squares fit to errors and details that are known, both ``(B,)``."""
        e, c = error.double().log(), detail.double().log()
        centred = c - c.mean()
        slope = (float((centred * e).sum()) + 2.0) / (float(centred.square().sum()) + 1.0)
        offset = float(e.mean()) - slope * float(c.mean())
        spread = float((e - offset - slope * c).square().mean().sqrt())
        return cls(offset, slope, max(spread, 1e-6), float(torch.quantile(detail.double(), 0.99)))

    def judge(self, error: Tensor, detail: Tensor) -> Tensor:
        """The standardised residual of known errors and details, ``(B,)``."""
        counted = detail.double().clamp_max(self.most).log()
        residual = error.double().log() - self.offset - self.slope * counted
        return (residual / self.spread).to(error.dtype)

    def score(
        self,
        learner: Learner,
        x: Tensor,
        *,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The calibrated score of images, ``(B,)``."""
        return self.judge(*error_and_detail(learner, x, samples=samples, generator=generator))


@torch.no_grad()
def error_and_detail(
    learner: Learner,
    x: Tensor,
    *,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Errors of reconstruction, and how much detail the images have, ``(B,)`` each.

    The error is squared and summed, after a mean over 3 x 3 pixels on images of 16 pixels or more:
    a stroke in another place then weighs more than an edge that is off by a pixel. The detail of
    an image is its total variation, the sum of |differences| between neighbouring pixels; that of
    a plain vector, which has no neighbours, the sum of its absolute values. Both are kept above a
    millionth of a pixel, so that their logarithms exist.
    """
    errors = []
    for part in torch.split(x, _PART):
        total = part.new_zeros(len(part))
        for _ in range(samples):
            difference = part - learner.reconstruct(part, generator=generator)
            total += _smoothed(difference).square().flatten(1).sum(1)
        errors.append(total / samples)
    floor = 1e-6 * x[0].numel()
    return torch.cat(errors).clamp_min(floor), _detail(x).clamp_min(floor)


def _smoothed(difference: Tensor) -> Tensor:
    if min(difference.shape[2:]) < _SMOOTHED:
        return difference
    return F.avg_pool2d(difference, 3, stride=1, padding=1)


def _detail(x: Tensor) -> Tensor:
    if min(x.shape[2:]) < 2:
        return x.abs().flatten(1).sum(1)
    down = (x[:, :, 1:] - x[:, :, :-1]).abs().flatten(1).sum(1)
    return down + (x[:, :, :, 1:] - x[:, :, :, :-1]).abs().flatten(1).sum(1)


def _once(learner: Learner, x: Tensor, kind: str, generator: torch.Generator | None) -> Tensor:
    if kind == "own":
        return learner.anomaly_score(x, generator=generator)
    if kind == "reconstruction":
        difference = x - learner.reconstruct(x, generator=generator)
        return difference.square().flatten(1).sum(1)
    model = getattr(learner, "model", None)
    if model is None:
        raise BadInput(f"{learner.name} has no latent model: its scores are reconstruction or own")
    z = learner.infer(x, generator=generator)
    if kind == "joint":
        return -model.log_joint(z, x)  # type: ignore[no-any-return]
    return model.squared_error(x, z) - model.prior.log_prob(z)  # type: ignore[no-any-return]
