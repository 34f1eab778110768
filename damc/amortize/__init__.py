"""The amortizer, a diffusion model q(z | x), and `distill`, which makes it a kernel's sampler."""

from __future__ import annotations

from damc.amortize.amortizer import Amortizer
from damc.amortize.distillation import amortizer_step, distill
from damc.amortize.ema import EMA
from damc.amortize.history import History

__all__ = ["EMA", "Amortizer", "History", "amortizer_step", "distill"]
