"""`damc download`."""

from __future__ import annotations

__all__ = ["Download"]

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import say
from damc.cli.options import Option


@dataclass(frozen=True)
class Download:
    """Fetch the published files of a data set, and check their sizes and hashes.

    Files that are there already are checked and not fetched again.
    """

    data: Annotated[Literal["mnist", "cifar10", "svhn"], Option("DATA", positional=True)]
    """The data set: mnist (12 MB), cifar10 (170 MB) or svhn (246 MB)."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    mirror: Annotated[str | None, Option("URL")] = None
    """Fetch the same files from this address; the publishers' if not given."""

    def run(self) -> None:
        """Fetches, and prints where the files are."""
        from tqdm import tqdm

        from damc.data.catalog import data_root
        from damc.data.download import download

        root = data_root(self.data_root)
        with tqdm(
            unit="B", unit_scale=True, disable=not sys.stderr.isatty(), dynamic_ncols=True
        ) as bar:

            def watch(name: str, count: int, size: int) -> None:
                bar.set_description(name)
                bar.total, bar.n = size, count
                bar.refresh()

            paths = download(self.data, root, url=self.mirror, watch=watch)
        for path in paths:
            say(str(path))
        say(f"damc train {self.data}-small --data-root {root}  trains on them")
