"""How a detector is fitted: which rows its parts learn, are calibrated on, and are judged by.

Three sets of rows are kept apart. Parts learn normal rows; the units in which they are combined
come from rows that they have not learned; and the threshold from rows that neither has seen.
Without a network, parts are cheap enough to be fitted several times: every row is scored by parts
that were fitted without it (cross-fitting), and the final ones learn all rows. A network learns
once, from all but a held-out share.
"""

from __future__ import annotations

__all__ = ["Fitted", "fit_parts", "fit_with_network", "judged_by", "network_kind"]

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.combine import Combination
from damc.anomaly.network import NetworkPlan
from damc.anomaly.parts import NearNormal, NetworkScore, Part, parts_for
from damc.anomaly.reading import Data, batches, images_of, measure, rows_of
from damc.anomaly.scaling import Columns, Scaling
from damc.anomaly.surprise import Surprise
from damc.errors import BadInput, Diverged
from damc.learn import Learner

Index = NDArray[np.intp]

_FOLDS = 5
_MANY = 4000  # rows from which on one split serves, as a fifth less to learn from costs little
_AUGMENTED = 10_000  # images beyond which variants are slow, and many are there anyway
_EXPLAINED = 1000  # images whose windows tell what surroundings foretell
_ROUNDS = 3  # of leaving out what looks anomalous


@dataclass(frozen=True)
class Fitted:
    """A fitted detector.

    Attributes:
        scaling: from the user's scale to that of the parts.
        parts: fitted.
        learner: the trained network, or None.
        combination: of the parts' scores.
        normal: part scores of the rows that the threshold is taken from, ``(m, P)``.
        own: part scores of all rows, ``(n, P)``.
        surprise: where images are unusual; None for vectors, and for a network alone.
    """

    scaling: Scaling
    parts: Sequence[Part]
    learner: Learner | None
    combination: Combination
    normal: Tensor
    own: Tensor
    surprise: Surprise | None = None

    def combined(self, scores: Tensor) -> NDArray[np.float32]:
        """The combined score of part scores ``(n, P)``, ``(n,)``."""
        found = self.combination(scores).float()
        if not bool(torch.isfinite(found).all()):
            raise Diverged("anomaly scores are not finite: learn with smaller step sizes or rates")
        return found.numpy()


def fit_parts(
    data: Data, order: Index, kind: str, contamination: float | None, augment: bool
) -> Fitted:
    """A detector without a network.

    Args:
        data: n rows.
        order: a permutation of them.
        kind: "auto", or the name of one part.
        contamination: share of anomalies among them; None is none.
        augment: take variants of normal images for normal, too, unless there are many.
    """
    augment = augment and len(order) <= _AUGMENTED
    kept, group = _trimmed(data, order, kind, contamination)
    if len(kept) >= _MANY:
        held, train = kept[: len(kept) // _FOLDS], kept[len(kept) // _FOLDS :]
        scaling, parts = _fitted(data, train, kind, group, augment)
        own = torch.empty(len(order), len(parts), dtype=torch.float64)
        own[train] = torch.stack([part.own.double() for part in parts], 1)
        others = np.setdiff1d(order, train)
        own[others] = _scores(parts, rows_of(data, others), scaling)
    else:
        held = kept
        own = _cross_fitted(data, order, kept, kind, group, augment)
        scaling, parts = _fitted(data, kept, kind, group, augment)
    half = (len(held) + 1) // 2
    combination = Combination.fit(own[held[:half]])
    surprise = _surprise(rows_of(data, kept), scaling)
    return Fitted(scaling, parts, None, combination, own[held[half:]], own, surprise)


def fit_with_network(
    data: Data,
    order: Index,
    plan: NetworkPlan,
    *,
    kind: str,
    contamination: float | None,
    held_out: float,
    augment: bool,
    samples: int,
    seed: int,
) -> Fitted:
    """A detector with a network, and the parts of `fit_parts` beside it.

    Args:
        data: n rows.
        order: a permutation of them.
        plan: the network.
        kind: "auto", or the network's score alone, by name.
        contamination: share of anomalies among the rows, told by the parts without a network.
        held_out: share of the rows that are not learned from.
        augment: take variants of normal images for normal, too.
        samples: posterior samples averaged for a score.
        seed: of everything random.
    """
    kept, group = _trimmed(data, order, "auto", contamination)
    cut = min(len(kept) - 2, max(2, round(held_out * len(kept))))
    if cut < 2:
        raise BadInput(f"a network must have at least 4 rows to learn from, got {len(kept)}")
    held, train = kept[:cut], kept[cut:]
    scaling = measure(rows_of(data, train))
    learner = plan.learner(scaling, seed)
    name = kind if kind != "auto" else network_kind(learner, scaling, cut)
    if name in ("joint", "authors") and learner.model is None:
        raise BadInput(f"{learner.name} has no latent model: give score_kind='own'")
    plan.train(learner, images_of(rows_of(data, train), scaling), scaling, seed)
    parts: list[Part] = [NetworkScore(learner, name, samples, seed)]
    if kind == "auto":
        parts = [*_fitted(data, train, kind, group, augment)[1], *parts]
    half = (cut + 1) // 2
    combination = _calibrated(parts, rows_of(data, held[:half]), scaling)
    own = _scores(parts, data, scaling)
    for k, part in enumerate(parts):
        if isinstance(part, NearNormal):
            own[train, k] = part.own.double()
    surprise = _surprise(rows_of(data, train), scaling)
    return Fitted(scaling, parts, learner, combination, own[held[half:]], own, surprise)


def judged_by(
    parts: Sequence[Part],
    learner: Learner | None,
    normal: Data,
    scaling: Scaling,
    surprise: Surprise | None = None,
) -> Fitted:
    """A detector of parts that are fitted already, calibrated on one half of normal data that
    they have not learned, and its threshold from the other."""
    half = (len(normal) + 1) // 2
    if half == len(normal):
        raise BadInput(f"normal data must be at least 2 rows, got {len(normal)}")
    index = np.arange(len(normal))
    combination = _calibrated(parts, rows_of(normal, index[:half]), scaling)
    own = _scores(parts, normal, scaling)
    if surprise is None:
        surprise = _surprise(normal, scaling)
    return Fitted(scaling, parts, learner, combination, own[half:], own, surprise)


def network_kind(learner: Learner, scaling: Scaling, held: int) -> str:
    """Which score of the network is a part."""
    if isinstance(scaling, Columns) or held < 20 or learner.inference is None:
        return "own" if learner.model is None else "joint"
    return "calibrated"


def _fitted(
    data: Data, train: Index, kind: str, group: int | None, augment: bool
) -> tuple[Scaling, list[NearNormal]]:
    rows = rows_of(data, train)
    scaling = measure(rows)
    parts = parts_for(scaling.shape, kind, group, augment=augment)
    return scaling, [part.fit(batches(rows, scaling)) for part in parts]


def _cross_fitted(
    data: Data, order: Index, kept: Index, kind: str, group: int | None, augment: bool
) -> Tensor:
    """Scores of every row by parts that were fitted to kept rows without it, ``(n, P)``."""
    found: dict[int, Tensor] = {}
    count = min(_FOLDS, len(order))
    for k in range(count):
        fold = order[k::count]
        train = kept[~np.isin(kept, fold)]
        scaling, parts = _fitted(data, train, kind, group, augment)
        scores = _scores(parts, rows_of(data, fold), scaling)
        found |= dict(zip(fold.tolist(), scores, strict=True))
    return torch.stack([found[i] for i in range(len(order))])


def _trimmed(
    data: Data, order: Index, kind: str, contamination: float | None
) -> tuple[Index, int | None]:
    """The rows without the share that lies farthest from the others, in the same order, and how
    many that are; judged by parts that see past a group of so many."""
    if contamination is None:
        return order, None
    kept, group = order, math.ceil(contamination * len(order))
    for _ in range(_ROUNDS):
        scaling, parts = _fitted(data, kept, kind, group, False)
        wide = parts[len(parts) // 2 :]
        scores = _scores(wide, data, scaling)
        scores[kept] = torch.stack([part.own.double() for part in wide], 1)
        combined = Combination.fit(scores[kept])(scores).numpy()
        least = np.argsort(combined, kind="stable")[: max(3, len(order) - group)]
        kept = order[np.isin(order, least)]
    return kept, group


def _scores(parts: Sequence[Part], data: Data, scaling: Scaling) -> Tensor:
    """The score of every part, ``(n, P)``."""
    found = [
        torch.stack([part.score(x).double() for part in parts], 1) for x in batches(data, scaling)
    ]
    return torch.cat(found)


def _surprise(normal: Data, scaling: Scaling) -> Surprise | None:
    """Fitted to normal images, if they are large enough to have surroundings."""
    if min(scaling.shape[1:]) < 3:
        return None
    few = rows_of(normal, np.arange(min(len(normal), _EXPLAINED)))
    return Surprise.fit(batches(few, scaling), torch.Generator().manual_seed(0))


def _calibrated(parts: Sequence[Part], normal: Data, scaling: Scaling) -> Combination:
    for part in parts:
        if isinstance(part, NetworkScore):
            part.calibrate(batches(normal, scaling))
    return Combination.fit(_scores(parts, normal, scaling))
