"""A table of results as data: its cells, its measures, and the paper's figures."""

from __future__ import annotations

__all__ = ["Cell", "Measure", "Options", "Result", "Table", "slug"]

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from damc.errors import BadInput
from damc.learn.presets import PRESETS, Preset
from damc.train.origin import Origin


@dataclass(frozen=True)
class Options:
    """Options of `damc reproduce`; None is the table's default.

    Attributes:
        scale: "small" for a laptop, "paper" for the paper's networks and iterations.
        methods: which rows.
        data: which data sets.
        digits: which held-out digits.
        seeds: each cell is run once for each.
        minutes: CPU time of training in each cell, for each thread.
        iterations: of training in each cell, instead of `minutes`.
        images: how many are drawn to measure distances.
        features: what distances are measured on.
        inception: the Inception file.
        likelihood: estimate log p(x) of test images too, which may take longer than training.
        data_root: folder of the named data sets.
        threads: of each process.
        weights: folder of published weights.
    """

    scale: str = "small"
    methods: tuple[str, ...] | None = None
    data: tuple[str, ...] | None = None
    digits: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = (0,)
    minutes: float | None = None
    iterations: int | None = None
    images: int | None = None
    features: str | None = None
    inception: str | None = None
    likelihood: bool = False
    data_root: str | None = None
    threads: int | None = None
    weights: str | None = None

    def preset_of(self, data: str) -> Preset:
        """The preset for a data set at this scale."""
        ends = "" if self.scale == "paper" else "-small"
        if data + ends not in PRESETS:
            known = [name.removesuffix(ends) for name in PRESETS if name.endswith(ends)]
            raise BadInput(f"data must be among {', '.join(known)}, got {data!r}")
        return PRESETS[data + ends]

    def origin_of(self, preset: Preset) -> Origin:
        """Where a preset's images are."""
        root = None if self.data_root is None else Path(self.data_root)
        return Origin(preset.data, preset.networks.shape, root=root)


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Attributes:
        row: what is compared, such as a method.
        column: on what, such as a data set.
        seed: of everything random in it.
        plan: all other choices, as plain values; a finished cell is reused only for an equal plan.
    """

    row: str
    column: str
    seed: int
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{slug(self.column)}--{slug(self.row)}--seed-{self.seed}"


@dataclass(frozen=True)
class Result:
    """The figures of a finished cell."""

    cell: Cell
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Measure:
    """One figure of a cell: its key in `Result.figures`, its title, and whether lower is better."""

    key: str
    title: str
    lower: bool = True


class Table:
    """A table that `damc reproduce` can make.

    Attributes:
        name: on the command line.
        about: one line.
        uses: the `Options` that apply besides `seeds`, `data_root` and `threads`.
        measures: the figures of each cell, the most important first.
        across: "columns" prints one table of the first measure with a column for each
            `Cell.column`; "measures" prints a table for each `Cell.column`.
        paper: the paper's figures by (row, column, measure).
        note: a sentence under the table.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    uses: ClassVar[frozenset[str]]
    measures: ClassVar[tuple[Measure, ...]]
    across: ClassVar[str] = "measures"
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {}
    note: ClassVar[str] = ""

    def cells(self, options: Options) -> list[Cell]:
        """Every run that the table consists of."""
        raise NotImplementedError

    def prepare(self, options: Options, out: Path) -> None:
        """Does the work that cells share, before the first of them; called again, it resumes."""

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        """Does one cell in its folder; called again after an interruption, it resumes."""
        raise NotImplementedError

    def chart(self, results: Sequence[Result], path: Path) -> Path | None:
        """Draws the results its own way; None leaves it to bars of the first measure."""
        return None

    def remarks(self, options: Options) -> str:
        """The text under the table."""
        return self.note

    def check(self, options: Options) -> None:
        """Raises `BadInput` for options that do not apply to this table, or have bad values."""
        always = {"seeds", "data_root", "threads"}
        for name, default in vars(Options()).items():
            given = getattr(options, name) != default
            if given and name not in self.uses | always:
                raise BadInput(
                    f"--{name.replace('_', '-')} must be left out for the table {self.name}, got "
                    f"{getattr(options, name)}"
                )
        if options.scale not in ("small", "paper"):
            raise BadInput(f"scale must be small or paper, got {options.scale!r}")
        if not options.seeds:
            raise BadInput("seeds must be at least one, got none")
        for name in ("minutes", "iterations", "images", "threads"):
            value = getattr(options, name)
            if value is not None and not value > 0:
                raise BadInput(f"{name} must be positive, got {value}")
        if options.minutes is not None and options.iterations is not None:
            raise BadInput("either minutes or iterations must be given, got both")


def slug(text: str) -> str:
    """A name for a folder."""
    return re.sub(r"[^A-Za-z0-9.=_]+", "-", text).strip("-") or "cell"
