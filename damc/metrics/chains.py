"""Have the chains mixed? Effective sample size and R-hat of a trace, computed by arviz."""

from __future__ import annotations

__all__ = ["ess", "rhat"]

import warnings
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput


def ess(trace: Tensor) -> Tensor:
    """Effective sample size: how many independent draws the trace is worth, for each coordinate.

    The bulk estimate of Vehtari et al., Rank-normalization, folding, and localization: an improved
    R-hat, 2021. An AR(1) chain with correlation r between neighbors has `T (1 - r) / (1 + r)`.
    Chains whose neighbors are anticorrelated can be worth more than their draws for a mean, but not
    for anything else, so the value never exceeds the number of draws, `T B`.

    Args:
        trace: points along B chains of T steps, (T, B, d).

    Returns:
        One value for each coordinate, (d,), float64, summed over the chains.
    """
    return _each_coordinate("ess", trace).clamp(max=trace.shape[0] * trace.shape[1])


def rhat(trace: Tensor) -> Tensor:
    """Rank-normalized split R-hat for each coordinate: 1 when all chains tell the same story.

    Above 1.01 the chains have not mixed (Vehtari et al., 2021).

    Args:
        trace: points along B chains of T steps, (T, B, d); at least 2 chains.

    Returns:
        One value for each coordinate, (d,), float64.
    """
    if trace.ndim == 3 and trace.shape[1] < 2:
        raise BadInput("R-hat compares chains, so at least 2 are wanted, but the trace holds 1.")
    return _each_coordinate("rhat", trace)


def _each_coordinate(name: str, trace: Tensor) -> Tensor:
    if trace.ndim != 3 or trace.shape[0] < 4 or 0 in trace.shape:
        raise BadInput(
            "a trace wants the shape (T, B, d) with at least 4 steps, "
            f"but {tuple(trace.shape)} was given."
        )
    if not bool(trace.isfinite().all()):
        raise BadInput("the trace holds NaN or infinity; finite points are wanted.")
    diagnostic = getattr(_arviz(), name)
    # arviz reads (chain, draw) arrays.
    chains = trace.detach().cpu().double().permute(2, 1, 0).contiguous().numpy()
    return torch.tensor([float(diagnostic(chain)) for chain in chains], dtype=torch.float64)


def _arviz() -> Any:
    try:
        with warnings.catch_warnings():
            # Once a day arviz announces its next major version.
            warnings.simplefilter("ignore", FutureWarning)
            import arviz
    except ImportError as error:
        raise BadInput(
            "chain diagnostics need arviz, which is not installed: pip install -e '.[diagnostics]'."
        ) from error
    return arviz
