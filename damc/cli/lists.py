"""Commands that list what there is: `damc presets`, `damc methods`, `damc data`."""

from __future__ import annotations

__all__ = ["Data", "Methods", "Presets"]

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from damc.cli.console import say, table, write_results
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.learn.presets import Preset


@dataclass(frozen=True)
class Presets:
    """List the set-ups that `damc train` knows: their data, sizes and cost."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json."""

    def run(self) -> None:
        """Prints one line a preset."""
        from damc.learn.presets import PRESETS

        rows = [_sizes(preset) for preset in PRESETS.values()]
        head = ["preset", "data", "image", "latent_dim", "decoder", "energy", "denoiser", "encoder"]
        say(table([[row[key] for key in head] for row in rows], head))
        say()
        say(table([[row["preset"], row["about"], row["cost"]] for row in rows]))
        say()
        say("decoder, energy, denoiser and encoder: numbers of parameters.")
        say("`damc data` says which of the data are here and how to get the others.")
        if self.out is not None:
            say(f"{write_results(self.out, {'presets': rows})}  the table")


@dataclass(frozen=True)
class Methods:
    """List the ways of learning that `damc train --method` and `damc reproduce` know."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json."""

    def run(self) -> None:
        """Prints one line a method."""
        from damc.learn import METHODS

        rows = [[name, method.about] for name, method in METHODS.items()]
        say(table(rows, ["method", "what it is"]))
        say()
        say("`damc train PRESET --method NAME` trains one on the networks of any preset.")
        if self.out is not None:
            found = [{"method": name, "about": about} for name, about in rows]
            say(f"{write_results(self.out, {'methods': found})}  the table")


@dataclass(frozen=True)
class Data:
    """List the data sets known by name: which are found, where, and how to get the others."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder to look in; if not given, $DAMC_DATA, else ./data."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json."""

    def run(self) -> None:
        """Prints one line a data set."""
        from damc.data import describe

        found = describe(self.data_root)
        rows = [
            [
                entry.name,
                "yes" if entry.found else "no",
                entry.counts.get("train"),
                entry.counts.get("test"),
                entry.path,
                entry.get,
            ]
            for entry in found
        ]
        say(table(rows, ["data", "found", "train", "test", "where", "how to get it"]))
        say()
        say("Also: any folder of pictures, .npy or raw file by its path, and hub:OWNER/NAME.")
        if self.out is not None:
            path = write_results(self.out, {"data": [asdict(entry) for entry in found]})
            say(f"{path}  the table")


def _sizes(preset: Preset) -> dict[str, Any]:
    """One preset as a row; its networks are built without memory, to count."""
    import torch

    from damc.learn.learner import count

    networks = preset.networks
    with torch.device("meta"):
        decoder, energy = networks.build_decoder(), networks.build_energy()
        amortizer = networks.build_amortizer()
    encoder = amortizer.encoder
    return {
        "preset": preset.name,
        "about": preset.about,
        "data": preset.data,
        "image": "x".join(map(str, networks.shape)),
        "latent_dim": networks.latent_dim,
        "decoder": count(decoder.parameters()),
        "energy": None if energy is None else count(energy.parameters()),
        "denoiser": count(amortizer.denoiser.parameters()),
        "encoder": None if encoder is None else count(encoder.parameters()),
        "iterations": preset.iterations,
        "cost": _cost(preset),
    }


def _cost(preset: Preset) -> str:
    if preset.minutes is not None:
        return f"{preset.iterations:,} iterations, about {preset.minutes} minutes on 2 cores"
    if preset.name.endswith("-small"):
        return f"{preset.iterations:,} iterations, on a laptop"
    return f"{preset.iterations:,} iterations, paper-size: wants a GPU"
