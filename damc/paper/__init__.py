"""The paper's tables, reproduced under one protocol: `damc reproduce TABLE`."""

from __future__ import annotations

__all__ = ["TABLES", "find_table"]

import difflib
import importlib

from damc.errors import BadInput
from damc.paper.table import Table

TABLES = {
    "generation": "damc.paper.generation:Generation",
    "race": "damc.paper.race:Race",
    "ablation": "damc.paper.generation:Ablation",
    "latent-spaces": "damc.paper.generation:LatentSpaces",
    "anomaly": "damc.paper.anomaly:Anomaly",
    "inversion": "damc.paper.inversion:InversionTable",
    "choices": "damc.paper.choices:Choices",
    "capacity": "damc.paper.scales:Capacity",
    "steps": "damc.paper.scales:Steps",
    "speedups": "damc.paper.scales:Speedups",
}
"""Every table by name; a new one is a file and a line here."""


def find_table(name: str) -> Table:
    """The table of that name."""
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, n=1, cutoff=0.4)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"table must be one of {', '.join(TABLES)}, got {name!r}{hint}")
    module, _, kind = TABLES[name].partition(":")
    table: Table = getattr(importlib.import_module(module), kind)()
    return table
