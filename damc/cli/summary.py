"""What a training command prints at its end: a table, and the files it wrote."""

from __future__ import annotations

__all__ = ["show_summary"]

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from damc.cli.console import say, shown, table

if TYPE_CHECKING:
    from damc.tasks.summarize import Summary


def show_summary(
    folder: Path,
    summary: Summary,
    known: Mapping[str, Any],
    files: Mapping[str, Path] | None = None,
) -> None:
    """Prints how a training run went, and writes it as ``results.json``.

    Args:
        folder: the run folder.
        summary: what was found.
        known: further rows of the table, which come first.
        files: further files by caption.
    """
    from damc.report.results import labeled, write_results

    results = {**known, "run": str(folder), **summary.table}
    rows = labeled({name: value for name, value in results.items() if name != "verdict"})
    say(table([[name, shown(value)] for name, value in rows.items()]))
    say()
    if "verdict" in results:
        say(results["verdict"])
        say()
    for caption, path in {**summary.pictures, **(files or {})}.items():
        say(f"{path}  {caption}")
    say(f"{summary.report}  all of this on one page")
    say(f"{write_results(folder, results)}  the table")
