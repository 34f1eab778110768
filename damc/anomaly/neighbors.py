"""How far a point lies from normal points, half of it relative to how dense they are there.

With d(x) the mean distance from x to its k nearest normal points N(x), the score is

    log d(x) - weight * mean over a in N(x) of log d(a).

Weight 0 is the distance of k-nearest-neighbor detectors (Ramaswamy et al. 2000), which overlooks
anomalies beside a dense group; weight 1 is the local outlier factor (Breunig et al. 2000), which
raises alarms inside sparse ones. One half, their geometric mean, is the default.

If anomalies may be among the points, weight 0 is safer: an anomaly among the neighbors of x lies in
a sparse place, beside which x seems normal. And where they form a group, k must exceed its size,
and d(x) is the distance to the k-th neighbor alone (`farthest`), which does not lie in that group.
"""

from __future__ import annotations

__all__ = ["Neighbors", "nearest"]

from dataclasses import dataclass

import torch
from torch import Tensor

from damc.errors import BadInput

_CELLS = 8_000_000  # distances held at a time: 32 MB, above which every block is new memory


@dataclass(frozen=True)
class Neighbors:
    """Normal points, and how far each lies from the others.

    Attributes:
        points: normal points, ``(n, d)``, and variants of them if any.
        local: log d(a) of each, by the other points, ``(n,)``.
        own: the score of each that is no variant, by the other points, ``(n,)``.
        k: neighbors that count.
        weight: share of the neighbors' own distances that is taken off.
        farthest: d(x) is the distance to the k-th neighbor, not the mean to all k.

    Example:
        >>> z = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        >>> near, far = Neighbors.fit(z).score(torch.tensor([[0.0, 0, 0], [9, 0, 0]]))
        >>> bool(far > near + 1)
        True
    """

    points: Tensor
    local: Tensor
    own: Tensor
    k: int = 5
    weight: float = 0.5
    farthest: bool = False

    @classmethod
    def fit(
        cls,
        z: Tensor,
        k: int = 5,
        weight: float = 0.5,
        *,
        farthest: bool = False,
        variants: Tensor | None = None,
    ) -> Neighbors:
        """Remembers normal points.

        Args:
            z: normal points, ``(n, d)``; of few, at most n - 1 neighbors count.
            k, weight, farthest: as above.
            variants: further points, some for each of z in its order, ``(m n, d)``; each is taken
                to lie in a place as dense as the point that it comes from.
        """
        if len(z) < 2:
            raise BadInput(f"neighbors must come from at least 2 normal points, got {len(z)}")
        k = min(k, len(z) - 1)
        distance, index = nearest(z, z, k + 1)
        # A point is its own nearest, or one of its copies is, at distance 0 alike.
        same = index == torch.arange(len(z), device=z.device)[:, None]
        same[:, -1] |= ~same.any(1)
        local = _log(distance[~same].view(len(z), k), farthest)
        own = local - weight * local[index[~same].view(len(z), k)].mean(1)
        if variants is not None:
            local = local.repeat(1 + len(variants) // len(z))
            z = torch.cat([z, variants])
        return cls(z, local, own, k, weight, farthest)

    def score(self, z: Tensor) -> Tensor:
        """The score of points z ``(B, d)``, ``(B,)``: higher is more anomalous."""
        distance, index = nearest(z, self.points, self.k)
        return _log(distance, self.farthest) - self.weight * self.local[index].mean(1)


def nearest(z: Tensor, points: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances from z ``(B, d)`` to the k nearest of `points` ``(n, d)``, and which those are,
    ``(B, k)`` each, nearest first."""
    center = points.mean(0)
    a = points - center
    half = a.square().sum(1) / 2
    distances, indices = [], []
    for part in torch.split(z - center, max(1, _CELLS // len(a))):
        # |z - a|^2 / 2 up to what is equal for all a; then the few that win are measured exactly.
        index = torch.addmm(half, part, a.T, alpha=-1).topk(k, dim=1, largest=False).indices
        found = torch.linalg.vector_norm(part[:, None] - a[index], dim=2)
        found, order = found.sort(dim=1)
        distances.append(found)
        indices.append(index.gather(1, order))
    return torch.cat(distances), torch.cat(indices)


def _log(distance: Tensor, farthest: bool) -> Tensor:
    """log d of distances ``(B, k)``, nearest first, ``(B,)``; of copies, at distance 0, too."""
    d = distance[:, -1] if farthest else distance.mean(1)
    return d.clamp_min(1e-6).log()
