"""What the page says beside its pictures, as pieces of HTML; what users typed is escaped."""

from __future__ import annotations

__all__ = ["bar", "density_table", "failure", "paragraph", "scores_table", "table"]

import html
from collections.abc import Sequence
from typing import Any

from damc.anomaly.detect import Detection
from damc.app.densities import Explored


def paragraph(text: str) -> str:
    """A line of text."""
    return f'<p class="damc-note">{html.escape(text)}</p>'


def failure(text: str) -> str:
    """A line of text that says what went wrong."""
    return f'<p class="damc-failure" role="alert">{html.escape(text)}</p>'


def bar(share: float, doing: str) -> str:
    """A progress bar, and what is being done."""
    label = html.escape(doing)
    return (
        f'<p class="damc-note"><progress value="{share:.3f}" max="1" aria-label="{label}">'
        f"</progress> {label}</p>"
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Any]],
    marked: Sequence[bool] = (),
    numbers: Sequence[int] = (),
) -> str:
    """A table that scrolls sideways where it is wider than the page.

    Args:
        head: titles of the columns.
        rows: of values, which are escaped.
        marked: rows that stand out.
        numbers: columns that are set flush right.

    Example:
        >>> table(["name"], [["<b>"]])[24:-6]
        '<table><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """

    def line(tag: str, values: Sequence[Any], kind: str = "") -> str:
        cells = [
            f"<{tag}{_class('damc-number' if k in numbers else '')}>{html.escape(str(v))}</{tag}>"
            for k, v in enumerate(values)
        ]
        return f"<tr{_class(kind)}>{''.join(cells)}</tr>"

    lines = [line("th", head)]
    for k, row in enumerate(rows):
        lines.append(line("td", row, "damc-marked" if any(marked[k : k + 1]) else ""))
    return f'<div class="damc-table"><table>{"".join(lines)}</table></div>'


def density_table(seen: Explored) -> str:
    """How far each way of sampling got, the evidence, and the verdict."""
    rows = [
        [
            panel.title,
            "-" if panel.distance is None else f"{panel.distance:.3f}",
            f"{panel.gradients:,}" if panel.gradients else "-",
            panel.note,
        ]
        for panel in seen.panels.values()
    ]
    head = ["", "distance", "gradients", ""]
    text = table(head, rows, numbers=(1, 2))
    grid, draws = seen.grid, seen.draws
    box = "" if grid.complete else ", of the box shown, which does not hold all of the density"
    text += paragraph(f"log evidence on the grid: {grid.log_evidence:.3f}{box}")
    if draws is not None:
        text += paragraph(
            f"log evidence by damc.sample: {draws.log_evidence:.3f} "
            f"+- {draws.log_evidence_error:.3f}; {len(draws.samples):,} draws worth "
            f"{draws.ess:,.0f} independent ones"
        )
        verdict = "Trusted" if draws.trusted else "Do not trust these draws"
        say = paragraph if draws.trusted else failure
        text += say(f"{verdict}: {draws.report}")
    return text


def scores_table(found: Detection, false_alarms: Sequence[float]) -> str:
    """Pictures with their scores, the most anomalous first, and the threshold."""
    rows = [
        [
            found.names[i],
            f"{found.scores[i]:.3f}",
            f"{found.p_values[i]:.3f}",
            "yes" if found.anomalous[i] else "no",
        ]
        for i in found.order
    ]
    head = ["picture", "score", "p-value", "anomaly"]
    low, high = false_alarms
    marked = [bool(found.anomalous[i]) for i in found.order]
    return table(head, rows, marked, numbers=(1, 2)) + paragraph(
        f"{int(found.anomalous.sum())} of {len(found.names)} score above the threshold "
        f"{found.threshold:.3f}, as {low:.1%} to {high:.1%} of normal pictures do"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
