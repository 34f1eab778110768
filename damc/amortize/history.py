"""What `damc.distill` saw while it learned."""

from __future__ import annotations

__all__ = ["History"]

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from damc.disk import write_atomically
from damc.errors import BadInput
from damc.report.figures import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(repr=False)
class History:
    """What `distill` saw in every iteration."""

    loss: list[float] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)  # mean over the chains' last start points
    displacement: list[float] = field(default_factory=list)  # mean |z_T - z_0|
    acceptance: list[float] = field(default_factory=list)
    gradient_calls: int = 0  # log-density gradients so far, counted for each chain
    jumps: list[float] = field(default_factory=list)  # acceptance of q's own proposals, if any

    def save(self, path: str | Path) -> None:
        """Writes the history as JSON; at any moment the file is the old one or the new one."""
        write_atomically(path, json.dumps(asdict(self)))

    def plot(self, path: str | Path | None = None) -> Figure:
        """Every quantity over the iterations, as a matplotlib figure; saved where a path is given.

        Args:
            path: a PNG to write as well.
        """
        lists = {name: values for name, values in vars(self).items() if isinstance(values, list)}
        shown = {name: values for name, values in lists.items() if values}
        if not shown:
            raise BadInput("history must have an iteration to plot, got none")
        length = max(map(len, shown.values()))
        records = [
            {"iteration": k + 1, **{name: v[k] for name, v in shown.items() if k < len(v)}}
            for k in range(length)
        ]
        return curves(records, path=path)

    def __repr__(self) -> str:
        if not self.loss:
            return "History(no iterations)"
        return (
            f"History({len(self.loss)} iterations, last loss {self.loss[-1]:.4g}, "
            f"{self.gradient_calls:,} gradient calls)"
        )
