"""Commands that list what there is: `damc presets`, `damc methods`, `damc data`."""

from __future__ import annotations

__all__ = ["Data", "Methods", "Presets"]

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from damc.cli.console import say, table
from damc.cli.options import Option


@dataclass(frozen=True)
class Presets:
    """List the presets of `damc train`: their data, sizes and cost."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json."""

    def run(self) -> None:
        """Prints a row for each preset."""
        from damc.learn.presets import PRESETS
        from damc.report.results import write_results
        from damc.tasks.presets import describe_preset

        rows = [describe_preset(preset) for preset in PRESETS.values()]
        head = ["preset", "data", "image", "latent_dim", "decoder", "energy", "denoiser", "encoder"]
        say(table([[row[key] for key in head] for row in rows], head))
        say()
        say(table([[row["preset"], row["about"], row["cost"]] for row in rows]))
        say()
        say("decoder, energy, denoiser and encoder: numbers of parameters.")
        say("`damc data` lists which data sets are here and how to get the others.")
        if self.out is not None:
            say(f"{write_results(self.out, {'presets': rows})}  the table")


@dataclass(frozen=True)
class Methods:
    """List the learning methods of `damc train --method` and `damc reproduce`."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json."""

    def run(self) -> None:
        """Prints a row for each method."""
        from damc.learn import METHODS
        from damc.report.results import write_results

        rows = [[name, method.about] for name, method in METHODS.items()]
        say(table(rows, ["method", "what it is"]))
        say()
        say("`damc train PRESET --method NAME` trains any of them on the networks of any preset.")
        if self.out is not None:
            found = [{"method": name, "about": about} for name, about in rows]
            say(f"{write_results(self.out, {'methods': found})}  the table")


@dataclass(frozen=True)
class Data:
    """List the named data sets: which are found, where, and how to get the others."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder to look in; if not given, $DAMC_DATA, else ./data."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json."""

    def run(self) -> None:
        """Prints a row for each data set."""
        from damc.data import describe
        from damc.report.results import write_results

        found = describe(self.data_root)
        head = ["data", "found", "train", "test", "where"]
        rows = [
            [
                entry.name,
                "yes" if entry.found else "no",
                entry.counts.get("train"),
                entry.counts.get("test"),
                entry.path,
            ]
            for entry in found
        ]
        say(table(rows, head))
        missing = [entry for entry in found if not entry.found]
        if missing:
            say()
            say("How to get the others, into the folders above:")
            say(table([[f"  {entry.name}", entry.get] for entry in missing]))
        say()
        say(
            "Also: any folder of pictures, CSV file of paths, .npy, .npz or raw file by its path,\n"
            "and hub:OWNER/NAME (pip install 'damc[hub]'); `damc train --data SOURCE` takes them."
        )
        if self.out is not None:
            path = write_results(self.out, {"data": [asdict(entry) for entry in found]})
            say(f"{path}  the table")
