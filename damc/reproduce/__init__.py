"""The paper's tables, made again under one protocol: `damc reproduce TABLE`."""

from __future__ import annotations

__all__ = ["TABLES", "find"]

import difflib
import importlib

from damc.errors import BadInput
from damc.reproduce.table import Table

TABLES = {
    "generation": "damc.reproduce.generation:Generation",
    "ablation": "damc.reproduce.generation:Ablation",
    "latent-spaces": "damc.reproduce.generation:LatentSpaces",
    "anomaly": "damc.reproduce.anomaly:Anomaly",
    "inversion": "damc.reproduce.inversion:InversionTable",
    "choices": "damc.reproduce.choices:Choices",
    "capacity": "damc.reproduce.scales:Capacity",
    "steps": "damc.reproduce.scales:Steps",
    "economies": "damc.reproduce.scales:Economies",
}
"""Every table by name; a new one is a file of its own and a line here."""


def find(name: str) -> Table:
    """The table of that name."""
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(TABLES)}"
        raise BadInput(f"there is no table {name!r}; {hint}")
    module, _, kind = TABLES[name].partition(":")
    table: Table = getattr(importlib.import_module(module), kind)()
    return table
