"""How a detector is fitted: which rows its parts learn, are calibrated on, and give the threshold.

Three sets of rows are kept apart. Parts learn normal rows; the units in which they are combined
come from rows that they have not learned; and the threshold from rows that neither has seen.
Without a network, parts are cheap enough to be fitted several times: every row is scored by parts
that were fitted without it, in units from other rows (cross-conformal prediction, Vovk 2015), and
the final parts and units come from all rows. A network learns once, from all but a held-out share,
of which one half gives units and the other the threshold.
"""

from __future__ import annotations

__all__ = [
    "Fitted",
    "batch_scores",
    "fit_parts",
    "fit_with_network",
    "network_kind",
    "part_scores",
    "recalibrate",
]

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from damc.anomaly.combine import Combination
from damc.anomaly.network import NetworkPlan
from damc.anomaly.parts import NearNormal, NetworkScore, Part, PartsPlan
from damc.anomaly.places import Patches, Places, Surprises
from damc.anomaly.reading import Data, batches, images_of, measure, rows_of
from damc.anomaly.scaling import Columns, Scaling
from damc.anomaly.scores import detail_of
from damc.anomaly.trimming import trim
from damc.data import Images
from damc.errors import BadInput, Diverged
from damc.learn import Learner

Index = NDArray[np.intp]

_FEW = 20  # rows
_FOLDS = 5
_FOLDS_OF_VECTORS = 20  # rows are the farther from others the fewer these are: few false alarms
_HELD_OUT = 0.2  # of many rows, for which one split serves: a fifth less to learn costs little
_MANY = 4000
_AUGMENTED = 10_000  # images beyond which variants are slow, and many are there anyway
_PROJECTED = 500  # images, ten a main direction; those of few fit the very images, not others
_LEFT = 0.5  # of a group of anomalies, which trimming does not find
_EXPLAINED = 1000  # images whose windows tell how surroundings predict a pixel


@dataclass(frozen=True)
class Fitted:
    """A fitted detector.

    Attributes:
        scaling: from the user's scale to that of the parts.
        parts: fitted.
        learner: the trained network, or None.
        combination: of the parts' scores.
        normal: combined scores of the rows that the threshold is taken from, ``(m,)``.
        own: part scores of all rows, and their log detail, ``(n, P + 1)``.
        places: says where images are unusual; None for vectors.
    """

    scaling: Scaling
    parts: Sequence[Part]
    learner: Learner | None
    combination: Combination
    normal: Tensor
    own: Tensor
    places: Places | None = None

    def combined(self, scores: Tensor) -> NDArray[np.float32]:
        """The combined score of part scores and log details ``(n, P + 1)``, ``(n,)``."""
        found = _combined(self.combination, scores).float()
        if not bool(torch.isfinite(found).all()):
            raise Diverged("anomaly scores are not finite: learn with smaller step sizes or rates")
        return found.numpy()


def fit_parts(data: Data, order: Index, plan: PartsPlan, contamination: float | None) -> Fitted:
    """A detector without a network.

    Args:
        data: n rows.
        order: a permutation of them.
        plan: which parts; of many images no variants are made.
        contamination: share of anomalies among the rows; None is none.
    """
    plan = replace(
        plan,
        augment=plan.augment and len(order) <= _AUGMENTED,
        project=len(order) >= _PROJECTED,
    )
    kept, plan = _trimmed(data, order, plan, contamination)
    if len(kept) >= _MANY:
        cut = int(_HELD_OUT * len(kept))
        held, train = kept[:cut], kept[cut:]
        scaling, parts = _fitted(data, train, plan)
        own = _own(parts, data, train, scaling)
    else:
        held = kept
        own = _cross_fitted(data, order, kept, plan)
        scaling, parts = _fitted(data, kept, plan)
    normal = _cross_calibrated(own[held])
    places = _places(parts, rows_of(data, kept), scaling)
    return Fitted(scaling, parts, None, _combination(own[held]), normal, own, places)


def fit_with_network(
    data: Data,
    order: Index,
    network: NetworkPlan,
    plan: PartsPlan,
    *,
    contamination: float | None,
    held_out: float,
    samples: int,
    seed: int,
) -> Fitted:
    """A detector with a network, and the parts of `fit_parts` beside it.

    Args:
        data: n rows.
        order: a permutation of them.
        network: the network.
        plan: which other parts; or its `kind` is the network's score alone, by name.
        contamination: share of anomalies among the rows, told by the parts without a network.
        held_out: share of the rows that are not learned from.
        samples: posterior samples averaged for a score.
        seed: of everything random.
    """
    kind = plan.kind
    plan = replace(plan, kind="auto", project=len(order) >= _PROJECTED)
    kept, plan = _trimmed(data, order, plan, contamination)
    cut = min(len(kept) - 2, max(2, round(held_out * len(kept))))
    if cut < 2:
        raise BadInput(f"a network must have at least 4 rows to learn from, got {len(kept)}")
    held, train = kept[:cut], kept[cut:]
    scaling = measure(rows_of(data, train))
    learner = network.learner(scaling, seed)
    name = kind if kind != "auto" else network_kind(learner, scaling, cut)
    if name in ("joint", "authors") and learner.model is None:
        raise BadInput(f"{learner.name} has no latent model: give score_kind='own'")
    network.train(learner, images_of(rows_of(data, train), scaling), scaling, seed)
    parts: list[Part] = [NetworkScore(learner, name, samples, seed)]
    if kind == "auto":
        parts = [*_fitted(data, train, plan)[1], *parts]
    half = (cut + 1) // 2
    combination = _calibrated(parts, rows_of(data, held[:half]), scaling)
    own = _own(parts, data, train, scaling)
    normal = _combined(combination, own[held[half:]])
    places = _places(parts, rows_of(data, train), scaling)
    return Fitted(scaling, parts, learner, combination, normal, own, places)


def recalibrate(
    parts: Sequence[Part],
    learner: Learner | None,
    normal: Data,
    scaling: Scaling,
    places: Places | None = None,
) -> Fitted:
    """A detector of parts that are fitted already, calibrated on one half of normal data that
    they have not learned, and its threshold from the other."""
    half = (len(normal) + 1) // 2
    if half == len(normal):
        raise BadInput(f"normal data must be at least 2 rows, got {len(normal)}")
    index = np.arange(len(normal))
    combination = _calibrated(parts, rows_of(normal, index[:half]), scaling)
    own = part_scores(parts, normal, scaling)
    if places is None:
        places = _places(parts, normal, scaling)
    scores = _combined(combination, own[half:])
    return Fitted(scaling, parts, learner, combination, scores, own, places)


def part_scores(parts: Sequence[Part], data: Data, scaling: Scaling) -> Tensor:
    """The score of every part, and the log detail last, which is 0 for vectors, ``(n, P + 1)``."""
    found = torch.empty(len(data), len(parts) + 1, dtype=torch.float64)
    for rows, scores in batch_scores(parts, data, scaling):
        found[rows] = scores
    return found


def batch_scores(
    parts: Sequence[Part], data: Data, scaling: Scaling
) -> Iterator[tuple[slice, Tensor]]:
    """`part_scores` of some rows at a time, and which these are."""
    vectors = isinstance(scaling, Columns)
    start = 0
    for x in batches(data, scaling):
        detail = torch.zeros(len(x)) if vectors else detail_of(x).log()
        columns = [*(part.score(x) for part in parts), detail]
        rows = slice(start, start + len(x))
        yield rows, torch.stack([column.double().cpu() for column in columns], 1)
        start = rows.stop


def network_kind(learner: Learner, scaling: Scaling, held: int) -> str:
    """Which score of the network is a part."""
    if isinstance(scaling, Columns) or held < 20 or learner.inference is None:
        return "own" if learner.model is None else "joint"
    return "calibrated"


def _fitted(
    data: Data, train: Index, plan: PartsPlan
) -> tuple[Scaling, list[NearNormal | Surprises | Patches]]:
    rows = rows_of(data, train)
    scaling = measure(rows)
    return scaling, [part.fit(batches(rows, scaling)) for part in plan.parts(scaling.shape)]


def _own(parts: Sequence[Part], data: Data, train: Index, scaling: Scaling) -> Tensor:
    """Scores of every row, and log detail, ``(n, P + 1)``: near normal, each without itself."""
    own = torch.empty(len(data), len(parts) + 1, dtype=torch.float64)
    others = np.setdiff1d(np.arange(len(data)), train)
    if len(others):
        own[others] = part_scores(parts, rows_of(data, others), scaling)
    others_too = [part for part in parts if not isinstance(part, NearNormal)]
    learned = iter(part_scores(others_too, rows_of(data, train), scaling).T)
    for k, part in enumerate(parts):
        own[train, k] = part.own.double() if isinstance(part, NearNormal) else next(learned)
    own[train, -1] = next(learned)
    return own


def _cross_fitted(data: Data, order: Index, kept: Index, plan: PartsPlan) -> Tensor:
    """Scores of every row by parts that were fitted to kept rows without it, ``(n, P + 1)``."""
    found: dict[int, Tensor] = {}
    vectors = not isinstance(data, Images) and data.ndim == 2
    count = min(_FOLDS_OF_VECTORS if vectors else _FOLDS, len(order))
    for k in range(count):
        fold = order[k::count]
        scaling, parts = _fitted(data, kept[~np.isin(kept, fold)], plan)
        scores = part_scores(parts, rows_of(data, fold), scaling)
        found |= dict(zip(fold.tolist(), scores, strict=True))
    return torch.stack([found[i] for i in range(len(order))])


def _trimmed(
    data: Data, order: Index, plan: PartsPlan, contamination: float | None
) -> tuple[Index, PartsPlan]:
    """The rows without the share that is least likely normal, in the same order; and the plan for
    the others, among which anomalies may still be. How dense a place is, is then not asked, as it
    may be anomalies that lie there; and if they form a group, half of it is taken to be left, and
    parts look past that many neighbors, without variants."""
    if contamination is None:
        return order, plan
    count = min(math.ceil(contamination * len(order)), len(order) - 3)
    if count < 1:
        return order, plan
    scaling, parts = _fitted(data, order, replace(plan, augment=False))
    spaces = [part.points for part in parts if isinstance(part, NearNormal)]
    if spaces:
        found = trim(spaces, count)
        kept = order[~found.left_out.numpy()]
        plan = replace(plan, weight=0.0)
        if found.grouped:
            past = plan.k + math.ceil(_LEFT * count)
            plan = replace(plan, k=past, farthest=True, augment=False)
        return kept, plan
    scores = part_scores(parts, rows_of(data, order), scaling)
    combined = _combined(_combination(scores), scores).numpy()
    least = np.argsort(combined, kind="stable")[: len(order) - count]
    return order[np.sort(least)], plan


def _places(parts: Sequence[Part], normal: Data, scaling: Scaling) -> Places | None:
    """What says where images are unusual: a part that does, or one fitted to normal images."""
    for part in parts:
        if isinstance(part, Surprises) or (isinstance(part, Patches) and part.name == "patches"):
            return part  # the maps of tiles are coarse
    if min(scaling.shape[1:]) < 3:
        return None
    few = rows_of(normal, np.arange(min(len(normal), _EXPLAINED)))
    return Surprises().fit(batches(few, scaling))


def _calibrated(parts: Sequence[Part], normal: Data, scaling: Scaling) -> Combination:
    for part in parts:
        if isinstance(part, NetworkScore):
            part.calibrate(batches(normal, scaling))
    return _combination(part_scores(parts, normal, scaling))


def _cross_calibrated(scores: Tensor) -> Tensor:
    """The combined score of normal rows, each in units that come from others, ``(m,)``; of few
    rows, from all, as units of a handful may be far off."""
    if len(scores) < _FEW:
        return _combined(_combination(scores), scores)
    found = torch.empty(len(scores), dtype=scores.dtype)
    for k in range(_FOLDS):
        fold = torch.arange(len(scores)) % _FOLDS == k
        found[fold] = _combined(_combination(scores[~fold]), scores[fold])
    return found


def _combination(scores: Tensor) -> Combination:
    """From part scores and log details of normal rows, ``(m, P + 1)``."""
    return Combination.fit(scores[:, :-1], scores[:, -1])


def _combined(combination: Combination, scores: Tensor) -> Tensor:
    return combination(scores[:, :-1], scores[:, -1])
