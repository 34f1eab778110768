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

from damc.anomaly.combine import Combination
from damc.anomaly.neighbors import nearest
from damc.anomaly.surprise import Surprise, sample_windows
from damc.errors import BadInput

_SHARE = 0.02  # of an image's places, whose mean counts
_REMEMBERED = 10_000  # places of normal images that `Patches` compares with
_NEAREST = 3
_STANDARD = 64  # images whose maps tell what is usual at each scale
_PIXELS = 2**20  # of those that count at most
_LEAST = 28  # pixels a side that images are averaged down to at most


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
    """The log surprise of `damc.anomaly.surprise` at one or several scales; needs no network.

    Large images are looked at as they are, and averaged down by 2, 4, ... to not less than 28
    pixels, in which a large defect is small. What any scale finds unusual is, as in
    `damc.anomaly.combine`.
    """

    name = "surprise"

    def __init__(self) -> None:
        self.surprises: list[Surprise] = []
        self.combination: Combination | None = None

    def fit(self, batches: Iterable[Tensor]) -> Surprises:
        generator = torch.Generator().manual_seed(0)
        windows: list[list[Tensor]] = []
        first: list[Tensor] = []
        for x in batches:
            scales = _scales(x)
            windows = windows or [[] for _ in scales]
            for kept, each in zip(windows, scales, strict=True):
                kept.append(sample_windows(each, generator))
            if sum(map(len, first)) < _STANDARD:
                first.append(x[:_STANDARD])
        if not first:
            raise BadInput("the surprise must be fitted to at least 1 image, got none")
        channels = first[0].shape[1]
        self.surprises = [Surprise.of(torch.cat(each), channels) for each in windows]
        few = torch.cat(first)[:_STANDARD]
        values = torch.stack([m.flatten() for m in self._maps(few, 5)], 1)
        step = -(-len(values) // _PIXELS)
        self.combination = Combination.fit(values[::step])
        return self

    def map(self, x: Tensor) -> Tensor:
        return self._combined(x, 5)

    def score(self, x: Tensor) -> Tensor:
        return _most_unusual(self._combined(x, 3))

    def state(self) -> dict[str, Tensor]:
        assert self.combination is not None
        found = {f"combination.{n}": t for n, t in vars(self.combination).items()}
        for k, each in enumerate(self.surprises):
            found |= {f"filters{k}": each.filters, f"bias{k}": each.bias}
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        start = "combination."
        fields = {n[len(start) :]: t for n, t in state.items() if n.startswith(start)}
        self.combination = Combination(**fields)
        self.surprises = [
            Surprise(state[f"filters{k}"], state[f"bias{k}"]) for k in range(len(fields["mean"]))
        ]

    def _combined(self, x: Tensor, smooth: int) -> Tensor:
        assert self.combination is not None
        maps = torch.stack(self._maps(x, smooth), -1)
        return self.combination(maps.flatten(0, 2)).view(maps.shape[:3])

    def _maps(self, x: Tensor, smooth: int) -> list[Tensor]:
        """The map of every scale in the size of x, ``(B, H, W)`` each."""
        found = []
        for surprise, each in zip(self.surprises, _scales(x), strict=True):
            m = surprise.map(each, smooth)[:, None]
            size = [x.shape[2], x.shape[3]]
            if list(m.shape[2:]) != size:
                m = functional.interpolate(m, size, mode="bilinear", align_corners=False)
            found.append(m[:, 0])
        return found


class Patches:
    """Distances from the features of every place to those of normal images, whatever their place.

    The features come from a network of the user's, such as the first stages of one trained on
    many images. The idea is PatchCore's (Roth et al., Towards total recall in industrial anomaly
    detection, CVPR 2022).

    Args:
        features: any module or function from images ``(B, C, H, W)`` in [-1, 1] to maps
            ``(B, F, h, w)``, to a list of such maps, which are joined at the size of the first, or
            to vectors ``(B, F)``.
        name: "patches", or "tiles" for those of `damc.anomaly.features.tiles`.
    """

    def __init__(self, features: Callable[[Tensor], Any], name: str = "patches") -> None:
        self.features = features.eval() if isinstance(features, nn.Module) else features
        self.name = name
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


def _scales(x: Tensor) -> list[Tensor]:
    """Images ``(B, C, H, W)`` as they are, and averaged down by 2, 4, ..."""
    found = [x]
    while min(found[-1].shape[2:]) >= 2 * _LEAST:
        found.append(functional.avg_pool2d(found[-1], 2))
    return found


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
