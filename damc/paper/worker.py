"""One cell of a table in its own process: `python -m damc.paper.worker TABLE OUT CELL`."""

from __future__ import annotations

__all__ = ["main"]

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from damc.errors import BadInput, Diverged
from damc.paper import find_table
from damc.paper.table import Options
from damc.paper.work import do_cell


def main(table_name: str, out: str, cell_name: str, follow: str = "") -> int:
    """Does the cell; returns the exit code, as the command `damc` does.

    Args:
        table_name: of the table.
        out: its folder.
        cell_name: of the cell.
        follow: "--follow" ends the process when its standard input ends, and waits for a process
            that still has the cell's folder.
    """
    if follow:
        threading.Thread(target=_end_with_input, daemon=True).start()
    table = find_table(table_name)
    given: dict[str, Any] = json.loads((Path(out) / "options.json").read_text())
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    options = Options(**values)
    cell = next(cell for cell in table.cells(options) if cell.name == cell_name)
    try:
        do_cell(table, cell, options, Path(out), wait=bool(follow))
    except (BadInput, Diverged) as error:
        sys.stderr.write(f"\ndamc: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _end_with_input() -> None:
    # Not sys.stdin, whose lock a thread must not hold when the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)  # at once, as when killed: the folder is safe against that


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
