"""DAMC on networks of a few weights, which count what passes through them."""

from __future__ import annotations

__all__ = ["INDEX", "QUICK", "WARM", "X", "Counted", "changed", "make", "seeded", "weights"]

from dataclasses import replace

import torch
from torch import Tensor, nn

from damc import DAMC, Amortizer, LatentModel
from damc.learn.damc import CENTERED, DAMCSettings

QUICK = DAMCSettings(
    sigma=0.5, posterior_steps=3, prior_steps=4, updates=2, start_steps=5, ema_every=1, ema_rate=0.5
)
WARM = replace(QUICK, warm_up=0.5, horizon=8, centered=True, store=100, p_uncond=0.0)
X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
INDEX = torch.arange(6)


class Counted(nn.Module):
    """Counts the rows that pass through a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.rows: list[int] = []
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        self.seen.append(x.detach())
        y: Tensor = self.inner(x)
        return y


def make(settings: DAMCSettings = QUICK, energy: bool = True) -> DAMC:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Unflatten(1, (1, 4, 4)))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 8))
    scalar = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(), nn.Linear(8, 1), nn.Flatten(0))
    model = LatentModel(Counted(decoder), Counted(scalar) if energy else None, 3, settings.sigma)
    options = CENTERED if settings.centered else {}
    q = Amortizer(3, Counted(encoder), embedding=8, widths=(8, 8, 8), **options)
    return DAMC(model, q, settings)


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def changed(before: list[Tensor], module: nn.Module) -> bool:
    return any(not a.equal(b) for a, b in zip(before, module.parameters(), strict=True))
