"""Anomalies among the training data: which rows to leave out, and whether they form a group.

How far a row lies from the bulk is the mean log distance to all rows but the nearest share c, the
contamination: a group of anomalies of that size does not count as company,

    b(x) = mean of log |x - a| over the rows a beyond the nearest c n.

Anomalies come scattered or in groups. Scattered ones are alone, and every distance finds them. A
group hides from distances to few neighbors, and its inner rows from b, too. So the share c of
largest b, the suspects, is asked whether it is a group,

    h = (share of suspects among the suspects' nearest neighbors - c) / (1 - c),

which is 0 if they are scattered and 1 if they keep to themselves. If h > 0.3, the ranks of b are
averaged over nearest neighbors, three times, so that rows of one group are kept or left together.
"""

from __future__ import annotations

__all__ = ["Trimming", "distance_from_bulk", "trim"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from damc.anomaly.neighbors import nearest

_REFERENCES = 2000  # rows that stand for all
_NEIGHBORS = 10
_ROUNDS = 3
_GROUPED = 0.3


@dataclass(frozen=True)
class Trimming:
    """Which rows are left out.

    Attributes:
        left_out: ``(n,)``.
        togetherness: h above.
    """

    left_out: Tensor
    togetherness: float

    @property
    def grouped(self) -> bool:
        """The rows left out form groups."""
        return self.togetherness > _GROUPED


def trim(spaces: Sequence[Tensor], count: int) -> Trimming:
    """The rows that are least likely to be normal.

    Args:
        spaces: the rows as points, ``(n, d)`` each; the mean over spaces counts.
        count: how many to leave out, less than n.
    """
    n = len(spaces[0])
    k = min(_NEIGHBORS, n - 1)
    near = [nearest(z, z, k + 1)[1] for z in spaces]  # and the row itself
    rank = torch.stack([_rank(distance_from_bulk(z, count / n)) for z in spaces]).mean(0)
    suspects = _largest(rank, count)
    share = count / n
    company = [(suspects[i][suspects].sum(1) - 1).double().mean() / k for i in near]
    together = (float(torch.stack(company).mean()) - share) / (1 - share)
    found = Trimming(suspects, together)
    if found.grouped:
        for _ in range(_ROUNDS):
            rank = torch.stack([rank[i].mean(1) for i in near]).mean(0)
        found = Trimming(_largest(rank, count), together)
    return found


def distance_from_bulk(z: Tensor, share: float) -> Tensor:
    """b of points z ``(n, d)``, ``(n,)``; 2,000 of many points stand for all."""
    step = -(-len(z) // _REFERENCES)
    references = z[::step]
    beyond = min(len(references) - 1, round(share * len(references)) + 1)
    found = []
    for part in torch.split(z, 2000):
        distance = torch.cdist(part, references).sort(1).values[:, beyond:]
        found.append(distance.clamp_min(1e-6).log().mean(1))
    return torch.cat(found)


def _rank(values: Tensor) -> Tensor:
    """Ranks from 0 to 1, ``(n,)``."""
    order = values.argsort(stable=True)
    rank = torch.empty(len(values), dtype=torch.float64)
    rank[order] = torch.linspace(0, 1, len(values), dtype=torch.float64)
    return rank


def _largest(values: Tensor, count: int) -> Tensor:
    """Which are the `count` largest, ``(n,)``."""
    found = torch.zeros(len(values), dtype=torch.bool)
    found[values.argsort(descending=True, stable=True)[:count]] = True
    return found
