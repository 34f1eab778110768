"""The paths of very many files, in little memory."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

__all__ = ["Paths"]


class Paths(Sequence[Path]):
    """Files below one folder, by name: each takes the bytes of its name and 8 more, where a `Path`
    takes several hundred.

    Args:
        folder: of all of them.
        names: their paths below it.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        self._ends = array("Q")
        text = bytearray()
        for name in names:
            text += os.fsencode(name)
            self._ends.append(len(text))
        self._text = bytes(text)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Paths: ...
    def __getitem__(self, index: int | slice) -> Path | Paths:
        if isinstance(index, slice):
            return Paths(self.folder, map(self._name, range(*index.indices(len(self)))))
        return self.folder / self._name(range(len(self))[index])

    def _name(self, i: int) -> str:
        return os.fsdecode(self._text[self._ends[i - 1] if i else 0 : self._ends[i]])
