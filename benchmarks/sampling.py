"""Drawing from the amortiser: the fast path and few-step solvers against a plain transcription."""

from __future__ import annotations

__all__ = ["rows"]

from typing import Any

import torch

from benchmarks import plain
from benchmarks.timing import interleaved
from damc import Amortiser


def rows(rounds: int = 7, batches: tuple[int, ...] = (64, 500)) -> list[dict[str, Any]]:
    """The paper's SVHN denoiser (d = 100, condition 1,024), conditional sampling."""
    torch.manual_seed(0)
    q = Amortiser(100, torch.nn.Identity(), embedding=1024)
    table = []
    for batch in batches:
        x = torch.randn(batch, 1024)
        generator = torch.Generator()

        def fast(
            x: torch.Tensor = x, generator: torch.Generator = generator, **options: Any
        ) -> Any:
            return q.sample(x=x, generator=generator.manual_seed(0), **options)

        def slow(x: torch.Tensor = x, generator: torch.Generator = generator) -> Any:
            return plain.sample(q, x, 100, generator.manual_seed(0))

        difference = float((fast() - slow()).abs().max())
        times = interleaved(
            {
                "plain transcription, 100 steps": slow,
                "damc, 100 steps": fast,
                "damc, multistep solver, 10 steps": lambda: fast(solver="multistep", steps=10),
            },
            rounds,
        )
        reference = times["plain transcription, 100 steps"]
        for name, measured in times.items():
            middle, low, high = measured.ratio(reference)
            table.append(
                {
                    "what": f"sampling, batch {batch}: {name}",
                    "seconds": round(measured.median, 4),
                    "times faster": round(middle, 2),
                    "quartiles": f"{low:.2f}-{high:.2f}",
                    "largest difference": f"{difference:.1e}" if name == "damc, 100 steps" else "",
                }
            )
    return table
