"""The parts of a detector: named scores of data, higher is more anomalous.

Every part takes model-scale data, images ``(B, C, H, W)`` in [-1, 1] or standardized vectors
``(B, 1, 1, d)``, and remembers what it needs as plain tensors.
"""

from __future__ import annotations

__all__ = ["CHEAP", "FEATURES", "NearNormal", "NetworkScore", "Part", "PartsPlan"]

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from damc.anomaly.features import (
    Projection,
    Standardized,
    columns,
    gradients,
    pixels,
    spectrum,
    tiles,
    variants,
)
from damc.anomaly.neighbors import Neighbors
from damc.anomaly.network import for_network
from damc.anomaly.places import Patches, Surprises
from damc.anomaly.scores import Calibration, score
from damc.errors import BadInput
from damc.learn import Learner
from damc.randomness import SharedNoise


class Part(Protocol):
    """A named score."""

    name: str

    def score(self, x: Tensor) -> Tensor:
        """How unusual data x ``(B, C, H, W)`` are, ``(B,)``."""

    def state(self) -> dict[str, Tensor]:
        """Everything it has learned, but for a network's weights."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave."""


Space = Projection | Standardized
"""Where distances between features are measured."""

FEATURES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Space] | None]] = {
    "pixels": (pixels, partial(Projection.fit, directions=50)),
    "gradients": (gradients, partial(Projection.fit, directions=60)),
    "spectrum": (spectrum, Standardized.fit),
    "neighbors": (columns, None),
}
"""What a `NearNormal` part of that name looks at, and the space of its distances if another."""

PROJECTED = ("pixels", "gradients")
"""Those of them whose distances are measured in main directions."""

CHEAP = (*FEATURES, "surprise", "patches", "tiles")
"""The names of parts that need no training of a network."""


_LARGE = 64  # pixels a side
_SMALL = 16  # pixels a side, below which a spectrum says little


class NearNormal:
    """How far the features of x lie from those of normal data, by `Neighbors`.

    Args:
        name: "pixels", "gradients" or "spectrum" of images, "neighbors" for the columns of
            vectors.
        k, weight, farthest: see `Neighbors`.
        augment: take `variants` of normal images for normal, too.
        project: measure distances in the main directions where that is the name's way; else
            between the features as they are.
    """

    def __init__(
        self,
        name: str,
        k: int = 5,
        *,
        weight: float = 0.5,
        farthest: bool = False,
        augment: bool = False,
        project: bool = True,
    ) -> None:
        if name not in FEATURES:
            raise BadInput(f"name must be one of {', '.join(FEATURES)}, got {name!r}")
        self.name, self.k, self.weight, self.farthest = name, k, weight, farthest
        self.augment = augment
        self.features, self.fit_space = FEATURES[name]
        if not project and name in PROJECTED:
            self.fit_space = None
        self.space: Space | None = None
        self.neighbors: Neighbors | None = None

    def fit(self, batches: Iterable[Tensor]) -> NearNormal:
        """Learns normal data, ``(B, C, H, W)`` at a time."""
        found, others = [], []
        for x in batches:
            found.append(self.features(x))
            if self.augment:
                others.append(torch.stack([self.features(each) for each in variants(x)]))
        f = torch.cat(found)
        more = torch.cat(others, 1).flatten(0, 1) if others else None
        if self.fit_space is not None:
            self.space = self.fit_space(f)
            f = self.space(f)
            more = None if more is None else self.space(more)
        self.neighbors = Neighbors.fit(
            f, self.k, self.weight, farthest=self.farthest, variants=more
        )
        return self

    @property
    def own(self) -> Tensor:
        """The scores of the data it was fitted to, each scored by the others, ``(n,)``."""
        assert self.neighbors is not None
        return self.neighbors.own

    @property
    def points(self) -> Tensor:
        """The data it was fitted to, as points, and their variants if any, ``(m, d)``."""
        assert self.neighbors is not None
        return self.neighbors.points

    def score(self, x: Tensor) -> Tensor:
        assert self.neighbors is not None
        f = self.features(x)
        return self.neighbors.score(f if self.space is None else self.space(f))

    def state(self) -> dict[str, Tensor]:
        assert self.neighbors is not None
        near = self.neighbors
        found = {"points": near.points, "local": near.local, "own": near.own}
        found["count"] = torch.tensor([near.k, near.weight, near.farthest], dtype=torch.float64)
        return found if self.space is None else found | vars(self.space)

    def load(self, state: Mapping[str, Tensor]) -> None:
        k, weight, farthest = state["count"].tolist()
        self.k, self.weight, self.farthest = int(k), weight, bool(farthest)
        points, local, own = state["points"], state["local"], state["own"]
        self.neighbors = Neighbors(points, local, own, self.k, self.weight, self.farthest)
        if "basis" in state:
            self.space = Projection(state["mean"], state["basis"])
        elif "scale" in state:
            self.space = Standardized(state["mean"], state["scale"])


class NetworkScore:
    """A score of `damc.anomaly.scores` under a trained learner.

    Args:
        learner: the learner.
        name: which score.
        samples: posterior samples averaged for it.
        seed: of the noise, which all data share, so that a score depends on its own row alone.
    """

    def __init__(self, learner: Learner, name: str, samples: int = 1, seed: int = 0) -> None:
        self.learner, self.name, self.samples, self.seed = learner, name, samples, seed
        self.shape = _shape_of(learner)
        self.calibration: Calibration | None = None

    def calibrate(self, batches: Iterable[Tensor]) -> None:
        """Fits the calibrated score to normal data not trained on; the others need nothing."""
        if self.name == "calibrated":
            x = torch.cat([self.seen(part) for part in batches])
            self.calibration = Calibration.fit(self.learner, x, **self._options())

    def score(self, x: Tensor) -> Tensor:
        x = self.seen(x)
        if self.calibration is None:
            return score(self.learner, x, self.name, **self._options()).cpu()
        return self.calibration.score(self.learner, x, **self._options()).cpu()

    def state(self) -> dict[str, Tensor]:
        return {} if self.calibration is None else {"calibration": self.calibration.tensor}

    def load(self, state: Mapping[str, Tensor]) -> None:
        if self.name == "calibrated":
            self.calibration = Calibration(*state["calibration"].tolist())

    def seen(self, x: Tensor) -> Tensor:
        """Data as the network takes them, on its device."""
        return (x if self.shape is None else for_network(x, self.shape)).to(self.learner.device)

    def _options(self) -> dict[str, Any]:
        generator = SharedNoise(self.learner.device)
        generator.manual_seed(self.seed)
        return {"samples": self.samples, "generator": generator}


@dataclass(frozen=True)
class PartsPlan:
    """Which parts a detector has that need no training of a network.

    Attributes:
        kind: the name of one part, or "auto" for all that suit the data: "neighbors" for vectors,
            "pixels" and "gradients" for images, "spectrum" for those in color, "surprise" for
            those beyond 64 pixels, in which a small defect changes little as a whole, "patches"
            if there are features, and "tiles" for pixels and gradients if there is a tile.
        augment: take variants of normal images for normal, too.
        features: a network for `damc.anomaly.places.Patches`.
        tile: pixels a side of tiles that are compared in place of whole images ("tiles").
        k, weight, farthest, project: see `NearNormal`.
    """

    kind: str = "auto"
    augment: bool = False
    features: Callable[[Tensor], Any] | None = None
    tile: int | None = None
    k: int = 5
    weight: float = 0.5
    farthest: bool = False
    project: bool = True

    def parts(self, shape: tuple[int, ...]) -> list[NearNormal | Surprises | Patches]:
        """Fresh parts for vectors ``(1, 1, d)`` or images ``(C, H, W)``."""
        names = self._names(shape)
        augment = self.augment and min(shape[1:]) > 1
        found: list[NearNormal | Surprises | Patches] = []
        for name in names:
            if name == "surprise":
                found.append(Surprises())
            elif name == "patches":
                assert self.features is not None
                found.append(Patches(self.features))
            elif name == "tiles":
                assert self.tile is not None
                found.append(Patches(partial(tiles, tile=self.tile), "tiles"))
            else:
                # Turning and scaling blur an image, which is what a spectrum looks at.
                found.append(self._near(name, augment and name != "spectrum"))
        return found

    def _near(self, name: str, augment: bool) -> NearNormal:
        return NearNormal(
            name,
            self.k,
            weight=self.weight,
            farthest=self.farthest,
            augment=augment,
            project=self.project,
        )

    def _names(self, shape: tuple[int, ...]) -> list[str]:
        names = ["neighbors"] if min(shape[1:]) < 2 else ["pixels", "gradients"]
        if shape[0] == 3 and min(shape[1:]) >= _SMALL:
            names = [*names, "spectrum"]
        known = [*names, "surprise"] if min(shape[1:]) > 2 else names
        if self.tile is not None:
            side = min(shape[1:])
            if self.tile >= side:
                least = "None for vectors" if side < 2 else f"less than the images' {side}"
                raise BadInput(f"tile must be {least}, got {self.tile}")
            names, known = ["tiles"], [*known, "tiles"]
        if self.features is not None and min(shape[1:]) > 1:
            names, known = [*names, "patches"], [*known, "patches"]
        if self.kind == "auto":
            large = min(shape[1:]) > 2 and max(shape[1:]) > _LARGE
            return [*names, "surprise"] if large and self.features is None else names
        if self.kind not in known:
            raise BadInput(f"score_kind must be one of auto, {', '.join(known)}, got {self.kind!r}")
        return [self.kind]


def _shape_of(learner: Learner) -> tuple[int, ...] | None:
    """(C, H, W) that networks were built for; None for those of the user's own."""
    networks = learner.config.get("networks")
    return tuple(networks["shape"]) if isinstance(networks, dict) else None
