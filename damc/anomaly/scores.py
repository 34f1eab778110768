"""How unusual images are under a learned model: named scores, higher is more anomalous.

Every score averages over posterior samples z of the image x, from `learner.infer`:

- "joint": -log p~(z, x), with the likelihood's own weight 1 / (2 sigma^2);
- "authors": |x - g(z)|^2 + E(z) + |z|^2 / 2, the score of the paper's code, whose error has weight
  1 whatever sigma is;
- "reconstruction": |x - g(z)|^2;
- "calibrated": how far the misfit at first sight lies above that of normal images, or of normal
  images with as much detail; see `Calibration` and `misfit`;
- "own": the learner's own `anomaly_score`, for learners without a latent model.
"""

from __future__ import annotations

__all__ = ["FLOOR", "SCORES", "Calibration", "detail_of", "error_and_detail", "misfit", "score"]

from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from damc.errors import BadInput
from damc.learn import Learner

SCORES = ("calibrated", "joint", "authors", "reconstruction", "own")
"""Every score by name."""

FLOOR = 1e-6
"""Least error and detail of a pixel, so that their logarithms exist."""

_SCALES = (1, 2, 4)  # pixels a side that a misfit averages before it squares

_PART = 500  # images whose chains run at a time


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
    """What errors normal images have, and what error an image of so much detail should have.

    A model makes larger errors e(x) on images with more strokes, edges or texture, c(x), so a plain
    error takes simple anomalies for normal images; but if detail excuses errors altogether, busy
    anomalies go free. So two questions are asked, how far the log error lies above that of normal
    images,

        u = (log e - mean) / spread,

    and how far above that of normal images with as much detail, by a straight line fitted to them,

        v = (log e - offset - slope log c) / residual_spread,

    and an image is as anomalous as either says: the score is log(exp(u) + exp(v)). An image with
    more detail than normal ones have is not excused for it: c counts up to `most`, their 99th
    percentile. The slope is drawn towards 1, which matters only where few images or equal details
    say little: errors and details both grow with contrast squared.

    To correct a likelihood by the input's complexity is the idea of Serra et al., "Input complexity
    and out-of-distribution detection with likelihood-based generative models", ICLR 2020.
    docs/results/anomalies.md says on which images this form was chosen.
    """

    mean: float
    spread: float
    offset: float
    slope: float
    residual_spread: float
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

    @property
    def tensor(self) -> Tensor:
        """Its six numbers, float64, from which it can be made again."""
        return torch.tensor(astuple(self), dtype=torch.float64)

    @classmethod
    def of(cls, error: Tensor, detail: Tensor) -> Calibration:
        """The fit to errors and details that are known, both ``(B,)``."""
        log_e, log_c = error.double().log(), detail.double().log()
        e, c = log_e - log_e.mean(), log_c - log_c.mean()
        slope = (float((c * e).sum()) + 1.0) / (float(c.square().sum()) + 1.0)
        mean = float(log_e.mean())
        offset = mean - slope * float(log_c.mean())
        most = float(torch.quantile(detail.double(), 0.99))
        return cls(mean, _spread(e), offset, slope, _spread(e - slope * c), most)

    def score_errors(self, error: Tensor, detail: Tensor) -> Tensor:
        """The score of known errors and details, ``(B,)``."""
        e, c = error.double().log(), detail.double().clamp_max(self.most).log()
        u = (e - self.mean) / self.spread
        v = (e - self.offset - self.slope * c) / self.residual_spread
        return torch.logaddexp(u, v).to(error.dtype)

    def score(
        self,
        learner: Learner,
        x: Tensor,
        *,
        samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The calibrated score of images, ``(B,)``."""
        return self.score_errors(
            *error_and_detail(learner, x, samples=samples, generator=generator)
        )


@torch.no_grad()
def error_and_detail(
    learner: Learner,
    x: Tensor,
    *,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Errors at first sight, and how much detail the images have, ``(B,)`` each.

    The error is the `misfit` of a reconstruction that was not refined for the very image, which
    would repair what is unusual about it, averaged over `samples` of them. Both are kept above
    `FLOOR`.
    """
    errors = []
    for part in torch.split(x, _PART):
        total = part.new_zeros(len(part))
        for _ in range(samples):
            total += misfit(part, learner.reconstruct(part, refine=False, generator=generator))
        errors.append(total / samples)
    return torch.cat(errors).clamp_min(FLOOR * x[0].numel()), detail_of(x)


def misfit(x: Tensor, y: Tensor) -> Tensor:
    """How far reconstructions y are off the images x, both ``(B, C, H, W)``, as a detector sees it,
    ``(B,)``: a squared error for which it matters where the differences are.

    What is wrong with an anomaly is wrong in one place, such as a stroke too many, while the errors
    of a normal image lie scattered along its edges. So squares are averaged over neighborhoods of
    a third of the image, and the root of their summed squares is larger the fewer of them hold the
    error. That is added up over scales, of pixels and of means over 2x2 and 4x4 of them, in which
    an edge that is off by a little cancels. A plain vector has no places: its misfit is the squared
    error.
    """
    difference = x - y
    side = min(x.shape[2:])
    if side < 2:
        return difference.square().flatten(1).sum(1)
    scales = [scale for scale in _SCALES if scale < side]
    parts = [_in_places(functional.avg_pool2d(difference, scale, stride=1)) for scale in scales]
    return torch.stack(parts).sum(0)


def detail_of(x: Tensor) -> Tensor:
    """How much there is to get wrong in images, ``(B,)``.

    The sum of squared differences between neighboring pixels, |grad x|^2: what an error is in
    proportion to where edges are off by a little. That of a plain vector, which has no neighbors,
    is the sum of its squares.
    """
    if min(x.shape[2:]) < 2:
        total = x.square().flatten(1).sum(1)
    else:
        down, right = x.diff(dim=2), x.diff(dim=3)
        total = down.square().flatten(1).sum(1) + right.square().flatten(1).sum(1)
    return total.clamp_min(FLOOR * x[0].numel())


def _in_places(difference: Tensor) -> Tensor:
    """The root of the summed squares of neighborhoods' mean squared differences, ``(B,)``."""
    squares = difference.square().sum(1, keepdim=True)
    reach = min(squares.shape[2:]) // 6
    around = functional.avg_pool2d(squares, 2 * reach + 1, stride=1, padding=reach)
    total: Tensor = torch.linalg.vector_norm(around.flatten(1), dim=1)
    return total


def _spread(centered: Tensor) -> float:
    return max(float(centered.square().mean().sqrt()), 1e-6)


def _once(learner: Learner, x: Tensor, kind: str, generator: torch.Generator | None) -> Tensor:
    if kind == "own":
        return learner.anomaly_score(x, generator=generator)
    if kind == "reconstruction":
        difference = x - learner.reconstruct(x, generator=generator)
        return difference.square().flatten(1).sum(1)
    model = learner.model
    if model is None:
        raise BadInput(
            f"{learner.name} has no latent model, and so no {kind} score: use calibrated, "
            "reconstruction or, if it has one, own"
        )
    z = learner.infer(x, generator=generator)
    if kind == "joint":
        return -model.log_joint(z, x)  # type: ignore[no-any-return]
    return model.squared_error(x, z) - model.prior.log_prob(z)  # type: ignore[no-any-return]
