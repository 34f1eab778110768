"""The copy of a module that follows it slowly."""

from __future__ import annotations

__all__ = ["EMA"]

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from damc.errors import BadInput


class EMA:
    """A frozen copy of a module whose weights follow it slowly: torch's `AveragedModel`.

    ``copy <- (1 - rate) copy + rate module`` at every `update`; with ``rate = 1`` it is the
    module itself. The paper starts its chains at such a copy of the sampler. Buffers are copied,
    not averaged: statistics such as those of BatchNorm are running averages already, and counters
    have no average.

    Attributes:
        module: the copy.
    """

    def __init__(self, module: nn.Module, rate: float) -> None:
        if not 0 < rate <= 1:
            raise BadInput(f"the rate of an EMA must lie in (0, 1], got {rate}")
        self.source = module
        self.average = AveragedModel(module, multi_avg_fn=partial(_follow, rate))
        # The copy counts as a first average; from 0, `AveragedModel` would copy once more. The
        # counter stays on the CPU, where reading it stalls no GPU.
        self.average.n_averaged = torch.ones((), dtype=torch.long, device="cpu")
        self.module: Any = self.average.module.requires_grad_(False).eval()

    def update(self) -> None:
        """Moves the copy a little towards the module."""
        self.average.update_parameters(self.source)


def _follow(rate: float, averages: Any, weights: Any, _: Any) -> None:
    """torch's `get_ema_multi_avg_fn`, but a function that can be pickled, as estimators must be."""
    torch._foreach_lerp_(averages, weights, rate)
