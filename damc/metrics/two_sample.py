"""Two-sample tests: do two sets of points come from one distribution?

Three answers, from the most telling to the cheapest: the accuracy of trained classifiers
(`c2st`), the energy distance and the squared maximum mean discrepancy (`mmd`). The last two get a
p-value from `permutation_test`.
"""

from __future__ import annotations

__all__ = ["c2st", "c2st_many", "energy_distance", "mmd", "permutation_test"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from damc.errors import BadInput
from damc.metrics.classifiers import logits, train_classifiers, tree_labels

Kernel = Callable[[Tensor, Tensor], Tensor]

_BLOCK = 1 << 24  # entries of a kernel matrix held at once: 128 MB of float64


def c2st(
    a: Tensor,
    b: Tensor,
    *,
    folds: int = 5,
    hidden: int = 64,
    epochs: int = 30,
    generator: torch.Generator | None = None,
) -> float:
    """Classifier two-sample test: the accuracy with which a classifier tells a from b, the larger
    of a small network's and of boosted trees'.

    0.5 means that neither can tell them apart, 1 that one always can (Lopez-Paz and Oquab,
    Revisiting classifier two-sample tests, 2017). The network sees smooth differences and the trees
    local ones, such as the width of each of many modes, so the larger value flatters least.

    When both sets come from one distribution each accuracy has mean 0.5 and a standard deviation of
    about `0.7 / sqrt(2 n)`; the larger of the two then lies a little above 0.5. Print the value of
    two exact sets beside a result where exact points can be had.

    Args:
        a: the first points, (n, d).
        b: the second points, (n, d).
        folds: parts of the cross-validation; no classifier judges a point that it was trained on.
        hidden: units in each of the network's two hidden layers.
        epochs: the network's passes over the data.
        generator: random numbers for folds, weights, batches and trees.
    """
    if a.ndim != 2 or b.ndim != 2:
        raise BadInput(
            f"c2st wants two (n, d) tensors, but got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    many = c2st_many(
        a[None], b[None], folds=folds, hidden=hidden, epochs=epochs, generator=generator
    )
    return float(many[0])


def c2st_many(
    a: Tensor,
    b: Tensor,
    *,
    folds: int = 5,
    hidden: int = 64,
    epochs: int = 30,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`c2st` of G pairs of sets at once: all G * folds networks are trained in one batch.

    Nothing is shared between the networks except the order of the batches, and neither they nor the
    trees are stopped by their test points, so neither accuracy is biased upwards.

    Args:
        a: the first points of every pair, (G, n, d).
        b: the second points of every pair, (G, n, d).

    Returns:
        The larger of both classifiers' accuracies, (G,), float64.
    """
    if a.ndim != 3 or a.shape != b.shape:
        raise BadInput(
            "a classifier two-sample test wants as many points in a as in b, of one dimension, "
            f"but got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    groups, n, _ = a.shape
    if not 2 <= folds <= n:
        raise BadInput(f"folds is {folds}, but wants to lie between 2 and the {n} points of a set.")
    if epochs < 1 or hidden < 1:
        raise BadInput(f"epochs and hidden want to be at least 1, but are {epochs} and {hidden}.")
    _check_finite(a, b)

    # Callers often measure under no_grad or inference_mode; the classifiers train all the same.
    with torch.inference_mode(False), torch.enable_grad():
        a, b = a.detach().double().clone(), b.detach().double().clone()
        # Shuffled within each set, and every fold takes as many points of a as of b: with unequal
        # parts the majority of the training points is the minority of the test points, and the
        # accuracy under the null falls below 0.5.
        draws = torch.rand((2, groups, n), generator=generator, device=_home(generator, a))
        order = draws.argsort(-1).to(a.device)[..., None]
        points = torch.stack(
            [a.gather(1, order[0].expand_as(a)), b.gather(1, order[1].expand_as(b))], dim=2
        )  # (G, n, 2, d)
        center = points.mean((1, 2), keepdim=True)
        spread = points.std((1, 2), keepdim=True)
        # A coordinate that is constant but for rounding tells nothing, and must not be blown up.
        spread = torch.where(spread > 1e-12 * center.abs(), spread, torch.inf)
        points = ((points - center) / spread).float()

        # The n % folds points beyond the last whole fold only ever train.
        size = n // folds
        fold = torch.arange(n, device=a.device) // size
        train = torch.cat([points[:, fold != k].flatten(1, 2) for k in range(folds)])
        test = torch.cat([points[:, fold == k].flatten(1, 2) for k in range(folds)])
        net = train_classifiers(train, hidden, epochs, generator)
        label = torch.arange(test.shape[1], device=a.device) % 2 == 1
        right = torch.stack(
            [(logits(net, test) > 0) == label, tree_labels(train, test, generator) == label]
        )
        accuracy = right.double().view(2, folds, groups, -1).mean((1, 3))
        return accuracy.amax(0)


def energy_distance(a: Tensor, b: Tensor) -> float:
    """Energy distance `2 E|a - b| - E|a - a'| - E|b - b'|`, as an unbiased U-statistic.

    Zero only when both distributions are one (Szekely and Rizzo, 2013). Being unbiased, it is as
    often below as above zero when they are.

    Args:
        a: the first points, (n, d).
        b: the second points, (m, d).
    """
    pooled, member = _pool(a, b)
    return float(_statistics(_distance_kernel, pooled, member[:, None])[0])


def mmd(a: Tensor, b: Tensor, *, bandwidth: float | None = None) -> float:
    """Squared maximum mean discrepancy `E k(a, a') + E k(b, b') - 2 E k(a, b)`, unbiased.

    The kernel is `k(x, y) = exp(-|x - y|^2 / (2 bandwidth^2))` (Gretton et al., A kernel two-sample
    test, 2012, lemma 6).

    Args:
        a: the first points, (n, d).
        b: the second points, (m, d).
        bandwidth: width of the kernel; by default the median distance between points of both sets.
    """
    pooled, member = _pool(a, b)
    kernel = _gaussian_kernel(_median_distance(pooled) if bandwidth is None else bandwidth)
    return float(_statistics(kernel, pooled, member[:, None])[0])


def permutation_test(
    statistic: Callable[[Tensor, Tensor], float],
    a: Tensor,
    b: Tensor,
    *,
    permutations: int = 200,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """The value of a statistic, and how often relabeled points reach it.

    `energy_distance` and `mmd` are computed for all permutations in one pass over their kernel
    matrix; any other callable is called once for each permutation.

    Args:
        statistic: `(a, b) -> float`, larger when the sets differ more.
        a: the first points, (n, d).
        b: the second points, (m, d).
        permutations: how many relabellings to draw.

    Returns:
        The value, and the p-value `(1 + #{permuted >= value}) / (1 + permutations)`, which under
        the null is uniform over its grid.
    """
    if permutations < 1:
        raise BadInput(f"permutations is {permutations}, but at least 1 is wanted.")
    pooled, member = _pool(a, b)
    draws = torch.rand((permutations, len(pooled)), generator=generator, device=_home(generator, a))
    order = draws.argsort(1).to(a.device)
    if statistic is energy_distance or statistic is mmd:
        kernel = (
            _distance_kernel
            if statistic is energy_distance
            else _gaussian_kernel(_median_distance(pooled))
        )
        members = torch.cat([member[None], member[order]]).T
        values = _statistics(kernel, pooled, members)
    else:
        points = pooled.to(a.dtype)
        masks = [member[o] == 1 for o in order]
        permuted = [statistic(points[mask], points[~mask]) for mask in masks]
        values = torch.tensor([statistic(a, b), *permuted], dtype=torch.float64)
    value = values[0]
    # Relabellings that are the same partition differ in their last bits only, and must count as
    # ties.
    slack = 1e-12 * values.abs().max()
    reached = int((values[1:] >= value - slack).sum())
    return float(value), (1 + reached) / (1 + permutations)


def _statistics(kernel: Kernel, pooled: Tensor, members: Tensor) -> Tensor:
    """Unbiased `mean k(a, a') + mean k(b, b') - 2 mean k(a, b)` for many labellings of one pool.

    Args:
        pooled: all points, (N, d).
        members: one column for each labelling, 1 where a point belongs to a and 0 where to b, (N,
            P).

    Returns:
        One value for each labelling, (P,).
    """
    n_all = len(pooled)
    n = members[:, 0].sum()
    m = n_all - n
    inside = torch.zeros(members.shape[1], dtype=pooled.dtype, device=pooled.device)
    row_sums = torch.zeros(n_all, dtype=pooled.dtype, device=pooled.device)
    rows = max(1, _BLOCK // n_all)
    for start in range(0, n_all, rows):
        block = slice(start, min(start + rows, n_all))
        k = kernel(pooled[block], pooled)
        k.diagonal(start).zero_()  # a U-statistic never pairs a point with itself
        row_sums[block] = k.sum(1)
        inside += (members[block] * (k @ members)).sum(0)
    across = row_sums @ members - inside
    outside = row_sums.sum() - inside - 2 * across
    return inside / (n * (n - 1)) + outside / (m * (m - 1)) - 2 * across / (n * m)


def _distance_kernel(x: Tensor, y: Tensor) -> Tensor:
    return -torch.cdist(x, y)


def _gaussian_kernel(bandwidth: float) -> Kernel:
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise BadInput(
            f"the kernel's bandwidth is {bandwidth:g}, but a positive number is wanted "
            "(the median distance is 0 when most points are copies of each other)."
        )
    return lambda x, y: torch.cdist(x, y).square_().mul_(-0.5 / bandwidth**2).exp_()


def _median_distance(pooled: Tensor, most: int = 2000) -> float:
    some = pooled[:: math.ceil(len(pooled) / most)]
    return float(torch.pdist(some).median())


def _pool(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets in one float64 tensor, (n + m, d), and 1 for the points of a, 0 for those of b."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise BadInput(
            "a two-sample test wants (n, d) and (m, d) tensors of at least 2 points each, "
            f"but got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    _check_finite(a, b)
    pooled = torch.cat([a, b]).detach().double()
    member = torch.zeros(len(pooled), dtype=pooled.dtype, device=pooled.device)
    member[: len(a)] = 1
    return pooled, member


def _check_finite(a: Tensor, b: Tensor) -> None:
    for name, points in (("first", a), ("second", b)):
        if not bool(points.isfinite().all()):
            raise BadInput(
                f"the {name} set of points holds NaN or infinity; finite points are wanted."
            )


def _home(generator: torch.Generator | None, like: Tensor) -> torch.device:
    return like.device if generator is None else generator.device
