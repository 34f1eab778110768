"""A CSV file that lists pictures: a column of paths, and perhaps labels and splits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from damc.errors import BadInput, NoSplit

__all__ = ["Listing", "read_listing"]

PATHS = ("path", "file", "filename", "image", "picture")
LABELS = ("label", "class", "target", "y")
SPLITS = ("split", "subset")
VALIDATION = ("val", "valid", "validation")


class Listing(NamedTuple):
    """The pictures of one split, in the order of the file; `divided` if the file names splits."""

    paths: list[Path]
    labels: NDArray[np.int64] | None
    divided: bool


def read_listing(path: Path, split: str) -> Listing:
    """Read a CSV file of paths.

    The first row has the names of the columns: one of path, file, filename, image or picture, else
    the first column; perhaps label (whole numbers) and split (train, test). A file without such a
    row, which has one column, is a plain list. Paths count from the folder of the file.

    Args:
        path: the CSV file.
        split: train, test or all.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is not a readable CSV file: {error}") from error
    if not rows:
        raise BadInput(f"{path} lists no pictures")
    names = [cell.strip().lower() for cell in rows[0]]
    headed = any(name in PATHS + LABELS + SPLITS for name in names)
    if headed:
        rows = rows[1:]
    column = _column(names, PATHS) if headed else None
    label, part = (_column(names, known) if headed else None for known in (LABELS, SPLITS))
    if part is not None and split != "all":
        wanted = (split, *VALIDATION) if split == "test" else (split,)
        rows = [row for row in rows if _cell(row, part, path).lower() in wanted]
    if not rows:
        raise NoSplit(f"{path} lists no pictures of the split {split!r}")
    listed = [Path(_cell(row, column or 0, path)).expanduser() for row in rows]
    paths = [name if name.is_absolute() else path.parent / name for name in listed]
    missing = [name for name in paths if not name.is_file()]
    if missing:
        raise BadInput(f"{path} lists {len(missing)} missing files, the first is {missing[0]}")
    return Listing(paths, _labels(rows, label, path), part is not None)


def _column(names: list[str], known: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)


def _cell(row: list[str], column: int, path: Path) -> str:
    if column >= len(row):
        raise BadInput(f"every row of {path} must have {column + 1} columns, got {row}")
    return row[column].strip()


def _labels(rows: list[list[str]], column: int | None, path: Path) -> NDArray[np.int64] | None:
    if column is None:
        return None
    texts = [_cell(row, column, path) for row in rows]
    try:
        return np.array([int(text) for text in texts], dtype=np.int64)
    except ValueError as error:
        raise BadInput(f"labels of {path} must be whole numbers: {error}") from error
