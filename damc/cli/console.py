"""What the command says: lines, tables, and the same numbers as JSON."""

from __future__ import annotations

__all__ = ["device", "say", "table", "write_results"]

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def say(text: str = "") -> None:
    """One line, or several, on standard output."""
    sys.stdout.write(text + "\n")


def table(rows: Sequence[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Columns of text; numbers stand to the right, and long ones get thousands commas.

    Example:
        >>> print(table([["digits", 1438], ["none", None]], head=["name", "images"]))
        name    images
        digits   1,438
        none         -
    """
    cells = [[_cell(value) for value in row] for row in rows]
    lines = [list(head), *cells] if head else cells
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    right = [
        any(isinstance(row[i], int | float) for row in rows)
        and all(row[i] is None or isinstance(row[i], int | float) for row in rows)
        for i in range(len(widths))
    ]
    return "\n".join(
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def write_results(folder: str | Path, results: Mapping[str, Any]) -> Path:
    """Writes ``results.json`` into a folder; numbers that are not finite become null."""
    from damc.files import write_atomically

    text = json.dumps(_plain(results), indent=2, allow_nan=False)
    return write_atomically(Path(folder) / "results.json", text + "\n")


def device(name: str) -> torch.device:
    """Where to compute: "cpu", "gpu", or "auto", the accelerator if there is one."""
    import torch

    from damc.errors import BadInput

    if name == "cpu" or (name == "auto" and not torch.accelerator.is_available()):
        return torch.get_default_device()
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise BadInput("there is no gpu here that torch can use: give --device cpu")
    return found


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
