"""The toy example's settings."""

from __future__ import annotations

__all__ = ["SHORT", "SHORT_TESTS", "ToySettings"]

from dataclasses import dataclass
from typing import Any, Literal

from damc.errors import BadInput

SHORT = 100
"""Iterations below which a run only shows that it runs, and `damc toy` tests it shortly."""

SHORT_TESTS: dict[str, Any] = {
    "heldout": 4,
    "samples": 400,
    "long_steps": 200,
    "shown": 4,
    "drawn": 400,
    "pooled": 400,
}
"""The settings of such tests."""


@dataclass(frozen=True)
class ToySettings:
    """Settings of the toy example.

    Attributes:
        iterations: rounds of sampling, moving and learning.
        kernel: "independence", MALA moves, each followed by an independence proposal from the
            prior; "langevin", the paper's; "mala", the paper's moves with accept or reject.
        step_size: s of the kernel.
        steps: T, moves of each training chain.
        long_step_size: s of the long Langevin chains.
        batch: fresh observations, and so chains, in an iteration.
        updates: M, gradient steps of the sampler in an iteration.
        learning_rate, weight_decay, clip: of the sampler's optimizer.
        ema: rate of the averaged copy that starts the chains.
        fresh: share of the chains that start at N(0, I) instead.
        p_uncond: share of each batch that is learned without its x.
        start_solver, start_steps: how the copy is sampled to start chains.
        embedding, capacity, widths: sizes of the sampler's network.
        solver, solver_steps, gamma: how the sampler is sampled for the table and the pictures.
        heldout: observations that the sampler is tested on.
        samples: points for each of them, of every kind.
        extra_steps: kernel moves after q in the second row of the table.
        long_steps: moves of the long Langevin chains.
        snapshots: iterations that the pictures show, besides the last.
        shown: held-out observations in the picture, those whose posterior is most divided.
        drawn: points for each of them in a snapshot.
        pooled: observations behind the pooled picture, one point each.
    """

    iterations: int = 500
    kernel: Literal["independence", "langevin", "mala"] = "independence"
    step_size: float = 0.12
    steps: int = 10
    long_step_size: float = 0.1
    batch: int = 500
    updates: int = 14
    learning_rate: float = 2e-3
    weight_decay: float = 1e-4
    clip: float = 100.0
    ema: float = 0.1
    fresh: float = 0.0
    p_uncond: float = 0.1
    start_solver: str = "multistep"
    start_steps: int = 10
    embedding: int = 128
    capacity: float = 0.5
    widths: tuple[int, int, int] = (128, 256, 256)
    solver: str = "multistep"
    solver_steps: int = 20
    gamma: float = 1.0
    heldout: int = 16
    samples: int = 2000
    extra_steps: int = 10
    long_steps: int = 2000
    snapshots: tuple[int, ...] = (1, 3, 10, 30, 100, 300)
    shown: int = 6
    drawn: int = 1000
    pooled: int = 2000

    def __post_init__(self) -> None:
        if self.kernel not in ("independence", "langevin", "mala"):
            raise BadInput(f"kernel must be independence, langevin or mala, got {self.kernel!r}")
        # c2st splits the points in 5 folds, and a density estimate in the plane needs 3 points.
        least = {"heldout": 1, "samples": 5, "shown": 1, "drawn": 1, "pooled": 3, "iterations": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise BadInput(f"{name} must be at least {low}, got {getattr(self, name)}")
