"""`damc reproduce`: the tables of the paper."""

from __future__ import annotations

__all__ = ["Reproduce"]

import shlex
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from damc.cli.console import say, table
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.paper.table import Cell


@dataclass(frozen=True)
class Reproduce:
    """Reproduce a table of the paper, with every method under one protocol.

    Each cell of the table is trained and measured on its own and kept in the output folder: the
    same command again resumes a table that was stopped, and further methods, digits or seeds are
    added to it. Figures are those of the last iterate, mean over seeds ± standard deviation; the
    paper's figures are in brackets.
    """

    table: Annotated[str, Option("TABLE", positional=True)]
    """The table; `damc reproduce list` lists them."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Output folder for cells and table; results/TABLE if not given."""

    scale: Literal["small", "paper"] = "small"
    """small runs on a laptop; paper has the paper's networks and iterations and needs GPUs."""

    methods: Annotated[tuple[str, ...] | None, Option("NAME ...")] = None
    """Rows of the table; all if not given."""

    data: Annotated[tuple[str, ...] | None, Option("NAME ...")] = None
    """Data sets; the table's own if not given."""

    digits: Annotated[tuple[int, ...] | None, Option("DIGIT ...")] = None
    """Held-out digits, in the table `anomaly`; 1 4 5 7 9 if not given."""

    seeds: Annotated[tuple[int, ...], Option("S ...")] = (0,)
    """Seeds; every cell is run once with each."""

    minutes: Annotated[float | None, Option("MIN")] = None
    """Minutes of training in each cell: on a CPU, of CPU time for each thread."""

    iterations: Annotated[int | None, Option("N")] = None
    """Iterations of training in each cell, instead of minutes."""

    images: Annotated[int | None, Option("N")] = None
    """Number of images drawn to measure distances."""

    features: Annotated[str | None, Option("NAME")] = None
    """Features for the distances: inception or pixel-pca."""

    inception: Annotated[Path | None, Option("FILE")] = None
    """The Inception file, for `--features inception`."""

    likelihood: bool = False
    """Estimate log p(x) of test images too, which may take longer than the training."""

    weights: Annotated[Path | None, Option("DIR")] = None
    """Folder of the published StyleGANs, encoders and VGG16, for `inversion --scale paper`."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    processes: Annotated[int, Option("N")] = 1
    """Number of cells that run at the same time."""

    cluster: Annotated[str | None, Option("ADDRESS")] = None
    """Address of a dask scheduler whose workers run the cells; they must see the output folder."""

    threads: Annotated[int | None, Option("N")] = None
    """Threads of each process; if not given, the processes share all cores."""

    def run(self) -> None:
        """Makes the table, prints it and the names of its files."""
        from damc.paper import TABLES, find_table
        from damc.paper.show import show
        from damc.paper.table import Options
        from damc.paper.work import run_cells

        if self.table == "list":
            self._check_list()
            say(table([[name, find_table(name).about] for name in TABLES]))
            return
        chosen = find_table(self.table)
        out = self.out or Path("results") / self.table
        options = Options(
            scale=self.scale,
            methods=self.methods,
            data=self.data,
            digits=self.digits,
            seeds=self.seeds,
            minutes=self.minutes,
            iterations=self.iterations,
            images=self.images,
            features=self.features,
            inception=None if self.inception is None else str(self.inception),
            likelihood=self.likelihood,
            data_root=None if self.data_root is None else str(self.data_root),
            threads=self.threads,
            weights=None if self.weights is None else str(self.weights),
        )
        try:
            results = run_cells(
                chosen,
                options,
                out,
                processes=self.processes,
                cluster=self.cluster,
                report=_report,
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped in {out}: the same command resumes it") from None
        command = shlex.join(["damc", *sys.argv[1:]])
        remarks = chosen.remarks(options)
        shown, files = show(chosen, results, out, command, remarks)
        for part in shown:
            say(part.title)
            say(table(part.rows, head=part.head))
            say()
        if chosen.paper:
            say("In brackets: the paper's figures, from other networks and budgets.")
        if remarks:
            say(remarks)
        for path in files:
            say(str(path))

    def _check_list(self) -> None:
        """Refuses options that a list of the tables has no use for."""
        from damc.errors import BadInput

        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "table" and value != field.default:
                name = field.name.replace("_", "-")
                raise BadInput(f"--{name} must be left out with list, got {value}")


def _report(cell: Cell, state: str) -> None:
    sys.stderr.write(f"{cell.row} on {cell.column}, seed {cell.seed}: {state}\n")
