"""What a learner logged while it was trained."""

from __future__ import annotations

__all__ = ["TrainingHistory"]

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from damc.errors import BadInput
from damc.report.figures import curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class TrainingHistory(Sequence[Mapping[str, Any]]):
    """The logged records of a training run, oldest first: ``learner.history``.

    A record has "iteration", "seconds" and the metrics of that iteration.

    Args:
        records: to begin with.

    Example:
        >>> history = TrainingHistory([{"iteration": 10, "mse": 0.5}])
        >>> history.append({"iteration": 20, "mse": 0.25})
        >>> history
        TrainingHistory(2 records, iterations 10 to 20: mse)
        >>> history.values("mse")
        [0.5, 0.25]
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.records = [dict(record) for record in records]

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record."""
        self.records.append(dict(record))

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that there are."""
        clock = ("iteration", "seconds")
        found = dict.fromkeys(name for record in self.records for name in record)
        return tuple(name for name in found if name not in clock)

    def values(self, name: str) -> list[float]:
        """A metric over time; records without it are left out."""
        if name not in (*self.names, "iteration", "seconds"):
            known = ", ".join(self.names) or "none, since nothing was logged"
            raise BadInput(f"name must be a metric ({known}), got {name!r}")
        return [record[name] for record in self.records if record.get(name) is not None]

    def plot(self, *names: str, path: str | Path | None = None) -> Figure:
        """Training curves of these metrics, of all by default, as a matplotlib figure.

        Args:
            names: the metrics.
            path: a PNG to write as well.
        """
        if not self.records:
            raise BadInput("history must have a record to plot, got none: train the learner first")
        return curves(self.records, names or self.names, path=path)

    def __getitem__(self, k: Any) -> Any:
        return self.records[k]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "TrainingHistory(no records)"
        ends = [record.get("iteration") for record in (self.records[0], self.records[-1])]
        names = ", ".join(self.names)
        plural = "" if len(self) == 1 else "s"
        return (
            f"TrainingHistory({len(self)} record{plural}, "
            f"iterations {ends[0]} to {ends[1]}: {names})"
        )
