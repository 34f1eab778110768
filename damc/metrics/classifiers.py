"""Binary classifiers: many small networks trained at once by batched matrix products, and trees."""

from __future__ import annotations

__all__ = ["logits", "train_classifiers", "tree_labels"]

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_RATE, _DECAY, _BATCH = 1e-2, 0.1, 100  # _BATCH counts pairs of points


def train_classifiers(
    x: Tensor, hidden: int, epochs: int, generator: torch.Generator | None
) -> list[Tensor]:
    """Trains one network with two hidden layers for each of N sets of labeled points.

    Args:
        x: standardized points, (N, 2m, d); even rows have the label 0, odd rows the label 1.
        hidden: units in each hidden layer.
        epochs: passes over the data.
        generator: random numbers for weights and batches.

    Returns:
        Weights and biases of the three layers, each stacked over the N networks.
    """
    nets, rows, d = x.shape
    home = x.device if generator is None else generator.device

    def uniform(*shape: int) -> Tensor:
        u = torch.rand((nets, *shape), generator=generator, device=home)
        return (2 * u - 1).to(x.device)

    # The first layer's folds lie all over the standardized data, not only through its center, and
    # are sharp, so that thin structures are seen early.
    w1 = uniform(d, hidden)
    w1 = 2 * w1 / w1.norm(dim=1, keepdim=True)
    net = [w1, 5 * uniform(1, hidden)]
    for fan_out in (hidden, 1):
        net += [
            uniform(hidden, fan_out) / math.sqrt(hidden),
            torch.zeros_like(net[1][..., :fan_out]),
        ]
    for parameter in net:
        parameter.requires_grad_()
    # Adam treats every entry alone, so on stacked parameters it is one Adam for each network.
    optimizer = torch.optim.AdamW(net, lr=_RATE, weight_decay=_DECAY)
    pairs = rows // 2
    batch = min(_BATCH, pairs)
    total = epochs * (pairs // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _RATE, total_steps=total + 1, pct_start=0.1
    )
    x = x.view(nets, pairs, 2, d)
    label = torch.tensor([0.0, 1.0], device=x.device).repeat(batch).expand(nets, -1)
    for _ in range(epochs):
        order = torch.rand(pairs, generator=generator, device=home).argsort().to(x.device)
        for k in range(pairs // batch):
            z = x[:, order[k * batch : (k + 1) * batch]].flatten(1, 2)
            loss = F.binary_cross_entropy_with_logits(logits(net, z), label) * nets
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return net


def logits(net: list[Tensor], x: Tensor) -> Tensor:
    """Log-odds of the label 1 for the points x, (N, k, d), each set by its own network, (N, k)."""
    w1, b1, w2, b2, w3, b3 = net
    h = torch.baddbmm(b1, x, w1).relu()
    h = torch.baddbmm(b2, h, w2).relu()
    return torch.baddbmm(b3, h, w3).squeeze(-1)


def tree_labels(train: Tensor, test: Tensor, generator: torch.Generator | None) -> Tensor:
    """Labels that gradient-boosted trees give to the test points, bool, (N, k).

    Args:
        train: points, (N, 2m, d); even rows have the label 0, odd rows the label 1.
        test: points, (N, k, d).
        generator: source of the trees' seed.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    home = train.device if generator is None else generator.device
    seed = int(torch.randint(2**31, (), generator=generator, device=home))
    label = torch.arange(train.shape[1]) % 2 == 1
    found = []
    for x, points in zip(train.cpu().numpy(), test.cpu().numpy(), strict=True):
        # Early stopping would keep points back, and only begins beyond 10,000 of them.
        trees = HistGradientBoostingClassifier(early_stopping=False, random_state=seed)
        trees.fit(x, label.numpy())
        found.append(torch.from_numpy(trees.predict(points)))
    return torch.stack(found).to(test.device)
