"""Parts that look place by place: an image is as unusual as its most unusual places.

They find small defects, which distances between whole images overlook, and say where they are.
"""

from __future__ import annotations

__all__ = ["Patches", "Places", "Surprises"]

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from damc.anomaly.neighbors import nearest
from damc.anomaly.surprise import Surprise
from damc.errors import BadInput

_SHARE = 0.02  # of an image's places, whose mean counts
_REMEMBERED = 10_000  # places of normal images that `Patches` compares with
_NEAREST = 3


class Places(Protocol):
    """A part with a map."""

    name: str

    def fit(self, batches: Iterable[Tensor]) -> Places:
        """Learns normal images, ``(B, C, H, W)`` at a time."""

    def map(self, x: Tensor) -> Tensor:
        """How unusual every pixel of x ``(B, C, H, W)`` is, ``(B, H, W)``."""

    def score(self, x: Tensor) -> Tensor:
        """How unusual images x are, ``(B,)``."""

    def state(self) -> dict[str, Tensor]:
        """Everything it has learned."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave."""


class Surprises:
    """The log surprise of `damc.anomaly.surprise`, which needs no network."""

    name = "surprise"

    def __init__(self) -> None:
        self.surprise: Surprise | None = None

    def fit(self, batches: Iterable[Tensor]) -> Surprises:
        self.surprise = Surprise.fit(batches, torch.Generator().manual_seed(0))
        return self

    def map(self, x: Tensor) -> Tensor:
        assert self.surprise is not None
        return self.surprise.map(x)

    def score(self, x: Tensor) -> Tensor:
        assert self.surprise is not None
        return _most_unusual(self.surprise.map(x, smooth=3))

    def state(self) -> dict[str, Tensor]:
        assert self.surprise is not None
        return {"filters": self.surprise.filters, "bias": self.surprise.bias}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.surprise = Surprise(state["filters"], state["bias"])


class Patches:
    """Distances from the features of every place to those of normal images, whatever their place.

    The features come from a network of the user's, such as the first stages of one trained on
    many images. The idea is PatchCore's (Roth et al., Towards total recall in industrial anomaly
    detection, CVPR 2022).

    Args:
        features: any module or function from images ``(B, C, H, W)`` in [-1, 1] to maps
            ``(B, F, h, w)``, to a list of such maps, which are joined at the size of the first, or
            to vectors ``(B, F)``.
    """

    name = "patches"

    def __init__(self, features: Callable[[Tensor], Any]) -> None:
        self.features = features.eval() if isinstance(features, nn.Module) else features
        self.points: Tensor | None = None

    def fit(self, batches: Iterable[Tensor]) -> Patches:
        generator = torch.Generator().manual_seed(0)
        found, weight = [], []
        for x in batches:
            rows = self._maps(x).permute(0, 2, 3, 1).flatten(0, 2)
            # The places with the largest of random numbers stay: each is as likely.
            weight.append(torch.rand(len(rows), generator=generator))
            found.append(rows)
            if sum(map(len, found)) > 4 * _REMEMBERED:
                rows, numbers = _largest(torch.cat(found), torch.cat(weight))
                found, weight = [rows], [numbers]
        if not found:
            raise BadInput("patches must be fitted to at least 1 image, got none")
        self.points = _largest(torch.cat(found), torch.cat(weight))[0]
        return self

    def map(self, x: Tensor) -> Tensor:
        distances = self._distances(x)[:, None]
        size = (x.shape[2], x.shape[3])
        return functional.interpolate(distances, size, mode="bilinear", align_corners=False)[:, 0]

    def score(self, x: Tensor) -> Tensor:
        return _most_unusual(self._distances(x))

    def state(self) -> dict[str, Tensor]:
        assert self.points is not None
        return {"points": self.points}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.points = state["points"]

    def _distances(self, x: Tensor) -> Tensor:
        """The log distance of every place to the nearest normal ones, ``(B, h, w)``."""
        assert self.points is not None
        f = self._maps(x)
        rows = f.permute(0, 2, 3, 1).flatten(0, 2)
        found, _ = nearest(rows, self.points, min(_NEAREST, len(self.points)))
        return found.mean(1).clamp_min(1e-6).log().view(len(f), *f.shape[2:])

    @torch.no_grad()
    def _maps(self, x: Tensor) -> Tensor:
        f = self.features(x)
        maps = [each if each.ndim == 4 else each[..., None, None] for each in _listed(f)]
        if any(each.ndim != 4 or len(each) != len(x) for each in maps):
            shapes = ", ".join(str(tuple(each.shape)) for each in _listed(f))
            raise BadInput(f"features must give maps (B, F, h, w) or vectors (B, F), got {shapes}")
        size = maps[0].shape[2:]
        same = [
            functional.interpolate(each, list(size), mode="bilinear", align_corners=False)
            for each in maps[1:]
        ]
        return torch.cat([maps[0], *same], 1).float().cpu()


def _listed(f: Any) -> list[Tensor]:
    return list(f) if isinstance(f, list | tuple) else [f]


def _largest(rows: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The rows ``(N, F)`` of the largest numbers, and those."""
    kept = numbers.topk(min(_REMEMBERED, len(rows))).indices
    return rows[kept], numbers[kept]


def _most_unusual(maps: Tensor) -> Tensor:
    """The mean of the highest values of maps ``(B, h, w)``, ``(B,)``."""
    values = maps.flatten(1)
    return values.topk(max(1, round(_SHARE * values.shape[1])), dim=1).values.mean(1)
