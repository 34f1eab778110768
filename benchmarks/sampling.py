"""Drawing from the amortizer: the fast path and few-step solvers against a plain transcription."""

from __future__ import annotations

__all__ = ["rows"]

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import compared, count_flops
from damc import Amortizer
from tests.reference import sampling as plain


def rows(rounds: int = 15, batches: tuple[int, ...] = (64, 500)) -> list[dict[str, Any]]:
    """The paper's SVHN denoiser (d = 100, condition 1,024), conditional sampling."""
    torch.manual_seed(0)
    q = Amortizer(100, torch.nn.Identity(), embedding=1024)
    table = []
    for batch in batches:
        x = torch.randn(batch, 1024)
        things: dict[str, Callable[[], Tensor]] = {
            "plain transcription, 100 steps": lambda x=x: plain.sample(q, x, 100, _seeded()),
            "damc, 100 steps": partial(_fast, q, x),
            "damc, multistep solver, 10 steps": partial(_fast, q, x, solver="multistep", steps=10),
        }
        flops = {name: count_flops(thing) for name, thing in things.items()}
        table += compared(f"sampling, batch {batch}", things, rounds, flops)
    return table


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _fast(q: Amortizer, x: Tensor, **options: Any) -> Tensor:
    return q.sample(x=x, generator=_seeded(), **options)
