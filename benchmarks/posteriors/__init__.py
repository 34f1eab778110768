"""Posteriors of real data in torch, each with its data and reference summaries as JSON.

    >>> from benchmarks.posteriors import POSTERIORS, load
    >>> schools = load("eight_schools-eight_schools_noncentered")

A model's log-density is in unconstrained coordinates u, Jacobians included; `parameters(u)` are
those of its reference. Data and reference summaries come from posteriordb
(github.com/stan-dev/posteriordb, BSD-3), except for the German credit data (UCI) and the Finnish
pines, whose summaries are our own.
"""

from __future__ import annotations

__all__ = ["POSTERIORS", "Posterior", "load"]

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"
Model = Callable[
    [dict[str, Any]], tuple[int, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
]


@dataclass(frozen=True)
class Posterior:
    """A posterior in unconstrained coordinates.

    Attributes:
        name: as in posteriordb.
        dim: d.
        log_prob: ``(B, d)`` to ``(B,)``, unnormalized.
        parameters: the parameters of unconstrained points, ``(B, d)`` to ``(B, d)``.
        reference: mean, sd and quantiles of each parameter in the reference draws.
        log_evidence: if it is known.
        by_log: compared by the logs of the parameters, since some have no variance.
    """

    name: str
    dim: int
    log_prob: Callable[[Tensor], Tensor]
    parameters: Callable[[Tensor], Tensor]
    reference: dict[str, dict[str, float]] = field(repr=False)
    log_evidence: float | None = None
    by_log: bool = False


def load(name: str) -> Posterior:
    """The posterior of that name; see `POSTERIORS`."""
    held = json.loads((DATA / f"{name}.json").read_text())
    dim, log_prob, parameters = POSTERIORS[name](held["data"])
    return Posterior(
        name,
        dim,
        log_prob,
        parameters,
        held["reference"],
        {"german_credit": -585.100, "lgcp_pines": 501.75}.get(name),
        by_log=name.startswith("one_comp"),
    )


def tensor(values: Any) -> Tensor:
    """Data as float64."""
    return torch.tensor(values, dtype=torch.float64)


from benchmarks.posteriors import dynamics, hierarchies, mixtures, regressions, series  # noqa: E402

POSTERIORS: dict[str, Model] = {
    **regressions.MODELS,
    **hierarchies.MODELS,
    **series.MODELS,
    **mixtures.MODELS,
    **dynamics.MODELS,
}
