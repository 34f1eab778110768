"""What `torch.compile` would bring: its start-up, its gain, and when the one pays for the other."""

from __future__ import annotations

__all__ = ["rows"]

import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch._inductor.config as inductor

from benchmarks.timing import interleaved
from damc import Amortizer
from damc.amortize import amortizer_step
from damc.fast.packed import PackedDenoiser
from damc.learn.damc import PaperDAMC
from damc.learn.presets import find_preset


def rows(rounds: int = 9) -> list[dict[str, Any]]:
    """The amortizer's draws at the SVHN sizes, and the M updates of `mnist-small`."""
    inductor.force_disable_caches = True  # so that an earlier run's work does not hide the start-up
    return [
        _compared("drawing 64 points, 100 steps", *_drawing(), rounds),
        _compared("6 amortizer updates, mnist-small, batch 128", *_updating(), rounds),
    ]


def _compared(
    what: str, eager: Callable[[], Any], compiled: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    start = time.perf_counter()
    compiled()
    start_up = time.perf_counter() - start
    times = interleaved({"eager": eager, "compiled": compiled}, rounds)
    faster, low, high = times["compiled"].ratio(times["eager"])
    saved = times["eager"].median - times["compiled"].median
    return {
        "what": what,
        "eager, s": round(times["eager"].median, 4),
        "compiled, s": round(times["compiled"].median, 4),
        "times faster": round(faster, 2),
        "quartiles": [round(low, 2), round(high, 2)],
        "start-up, s": round(start_up, 1),
        "pays after": f"{start_up / saved:,.0f} calls" if saved > 0 else "never",
    }


def _drawing() -> tuple[Callable[[], Any], Callable[[], Any]]:
    x = torch.randn(64, 1024)

    def draws(compile_it: bool) -> Callable[[], Any]:
        torch.manual_seed(0)
        q = Amortizer(100, torch.nn.Identity(), embedding=1024)
        ways = {name: getattr(PackedDenoiser, name) for name in ("evaluate", "modulate")}
        if compile_it:
            ways = {name: torch.compile(way) for name, way in ways.items()}

        def draw() -> Any:
            with mock.patch.multiple(PackedDenoiser, **ways):
                return q.sample(x=x, generator=torch.Generator().manual_seed(0))

        return draw

    return draws(False), draws(True)


def _updating() -> tuple[Callable[[], Any], Callable[[], Any]]:
    x = torch.rand(128, *find_preset("mnist-small").networks.shape) * 2 - 1

    def updates(compile_it: bool) -> Callable[[], Any]:
        torch.manual_seed(0)
        learner = PaperDAMC.from_preset("mnist-small")
        if compile_it:
            net: Any = learner.amortizer.denoiser
            net.forward = torch.compile(net.forward)
        z = torch.randn(128, learner.model.latent_dim)
        update = partial(learner.update, "amortizer")
        return lambda: amortizer_step(
            learner.amortizer, z, x, step=update, generator=torch.Generator().manual_seed(0)
        )

    return updates(False), updates(True)
