"""What the commands print, and the machine they run on: lines, tables, devices, threads."""

from __future__ import annotations

__all__ = [
    "at_least_one",
    "check_writable",
    "device",
    "rank",
    "say",
    "shown",
    "stopped",
    "table",
    "use_threads",
]

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def say(text: str = "") -> None:
    """One line, or several, on standard output."""
    sys.stdout.write(text + "\n")


def table(rows: Sequence[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """Columns of text; numbers are aligned to the right and have thousands separators.

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


def device(name: str) -> torch.device:
    """Where to compute: "cpu", "gpu", or "auto", the accelerator if there is one."""
    import torch

    from damc.errors import BadInput

    if name == "cpu" or (name == "auto" and not torch.accelerator.is_available()):
        return torch.get_default_device()
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise BadInput("device must be cpu where torch finds no GPU, got gpu")
    return found


def use_threads(threads: int | None) -> None:
    """Sets the number of torch's threads; None leaves it as it is."""
    import torch

    from damc.errors import BadInput

    if threads is not None and threads < 1:
        raise BadInput(f"threads must be at least 1, got {threads}")
    if threads is not None:
        torch.set_num_threads(threads)


def rank() -> int:
    """The number of this process under torchrun or lightning-fabric."""
    text = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return int(text) if text.isdecimal() else 0  # `open_place` refuses what is no number


def at_least_one(**numbers: int | None) -> None:
    """Refuses numbers below 1, by the names of their options; None is one not given."""
    from damc.errors import BadInput

    for name, value in numbers.items():
        if value is not None and value < 1:
            raise BadInput(f"{name.replace('_', '-')} must be at least 1, got {value}")


def check_writable(folder: Path) -> None:
    """Refuses a folder in which nothing can be written, before there is work to lose."""
    from damc.errors import BadInput

    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not near.is_dir() or not os.access(near, os.W_OK):
        raise BadInput(f"could not write in {folder}: {near} is no folder that can be written to")


def shown(value: Any) -> str:
    """A value as text, floats with 4 digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def stopped(folder: Path) -> str:
    """What an interrupted training run says: where it can be resumed."""
    from damc.tasks.training import last_checkpoint

    saved = last_checkpoint(folder)
    if saved is None:
        return f"stopped before the first checkpoint in {folder}"
    return f"stopped at checkpoint {saved} in {folder}: the same command resumes it"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
