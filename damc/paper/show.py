"""Results of a table as text, Markdown, CSV, JSON and a chart."""

from __future__ import annotations

__all__ = ["Shown", "show"]

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from damc.disk import write_atomically
from damc.paper.table import Measure, Result, Table
from damc.report import plots


@dataclass(frozen=True)
class Shown:
    """A heading, the column heads, and the rows, as text."""

    title: str
    head: list[str]
    rows: list[list[str]]

    @property
    def markdown(self) -> str:
        """As a Markdown table."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [_line(self.head), "|" + "---|" * len(self.head), *map(_line, self.rows)]
        return "\n".join(lines)


def show(
    table: Table, results: Sequence[Result], out: Path, command: str, remarks: str
) -> tuple[list[Shown], list[Path]]:
    """The table as text, and the files written: CSV, JSON, Markdown and a chart.

    Figures are means over seeds, with standard deviations where there are several; the paper's
    figures are in brackets.
    """
    rows = list(dict.fromkeys(result.cell.row for result in results))
    columns = list(dict.fromkeys(result.cell.column for result in results))
    if table.across == "columns":
        known = [m for m in table.measures if any(m.key in r.figures for r in results)]
        shown = [_across_columns(table, results, rows, columns, m) for m in known]
    else:
        shown = [_across_measures(table, results, rows, column) for column in columns]
    markdown = "\n\n".join([*(s.markdown for s in shown), remarks, f"`{command}`"])
    files = [
        write_atomically(out / "table.md", markdown + "\n"),
        write_atomically(out / "table.csv", _csv(table, results)),
        write_atomically(out / "results.json", _json(table, results, command, remarks)),
        table.chart(results, out / "chart.png")
        or _chart(table, results, rows, columns, out / "chart.png"),
    ]
    return shown, files


def _across_columns(
    table: Table, results: Sequence[Result], rows: list[str], columns: list[str], measure: Measure
) -> Shown:
    lines = []
    for row in rows:
        means = [_mean(results, row, column, measure.key) for column in columns]
        known = [mean for mean in means if mean is not None]
        paper = [table.paper.get((row, column, measure.key)) for column in columns]
        printed = [value for value in paper if value is not None]
        whole = f"{statistics.mean(known):.3g}" if len(known) == len(columns) else "-"
        if len(printed) == len(columns):
            whole += f" ({statistics.mean(printed):.3g})"
        lines.append([row, *(_text(table, results, row, c, measure) for c in columns), whole])
    return Shown(measure.title, ["", *columns, "mean"], lines)


def _across_measures(
    table: Table, results: Sequence[Result], rows: list[str], column: str
) -> Shown:
    present = [m for m in table.measures if any(m.key in r.figures for r in results)]
    lines = [[row, *(_text(table, results, row, column, m) for m in present)] for row in rows]
    return Shown(column, ["", *(m.title for m in present)], lines)


def _text(table: Table, results: Sequence[Result], row: str, column: str, measure: Measure) -> str:
    values = _values(results, row, column, measure.key)
    printed = table.paper.get((row, column, measure.key))
    beside = "" if printed is None else f" ({printed:.3g})"
    if not values:
        return "-" + beside
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{_number(statistics.mean(values))}{spread}{beside}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _values(results: Sequence[Result], row: str, column: str, key: str) -> list[float]:
    return [
        r.figures[key]
        for r in results
        if r.cell.row == row and r.cell.column == column and key in r.figures
    ]


def _mean(results: Sequence[Result], row: str, column: str, key: str) -> float | None:
    values = _values(results, row, column, key)
    return statistics.mean(values) if values else None


def _csv(table: Table, results: Sequence[Result]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["row", "column", "seed", "measure", "value", "paper"])
    for r in results:
        for key, value in r.figures.items():
            printed = table.paper.get((r.cell.row, r.cell.column, key), "")
            writer.writerow([r.cell.row, r.cell.column, r.cell.seed, key, value, printed])
    return buffer.getvalue()


def _json(table: Table, results: Sequence[Result], command: str, remarks: str) -> str:
    cells = [{**asdict(r.cell), "figures": dict(r.figures)} for r in results]
    found = {"table": table.name, "command": command, "note": remarks, "cells": cells}
    return json.dumps(found, indent=2) + "\n"


def _chart(
    table: Table, results: Sequence[Result], rows: list[str], columns: list[str], path: Path
) -> Path:
    measure = table.measures[0]
    panels = {}
    for column in columns:
        bars = {}
        for row in rows:
            values = [v for v in _values(results, row, column, measure.key) if math.isfinite(v)]
            if values:
                bars[row] = values
        panels[column] = bars
    better = "lower" if measure.lower else "higher"
    return plots.bars(panels, path, f"{measure.title} ({better} is better)")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
