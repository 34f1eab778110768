"""Models to share: `damc models`, `damc package`, `damc push`."""

from __future__ import annotations

__all__ = ["Models", "Package", "Push"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from damc.cli.console import say, table
from damc.cli.options import Option


@dataclass(frozen=True)
class Models:
    """List the small trained models that come with damc; with a name, print its card.

    `damc sample NAME` draws from one, `damc.load("NAME")` loads it in Python.
    """

    name: Annotated[str | None, Option("[NAME]", positional=True)] = None
    """The model whose card to print."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Also write the table there, as results.json; not with NAME."""

    def run(self) -> None:
        """Prints a row for each model, or a card."""
        from damc.errors import BadInput
        from damc.hub.packaged import packaged_folder, packaged_names
        from damc.hub.published import CARD, FILES, read_config
        from damc.report.results import write_results

        if self.name is not None:
            if self.out is not None:
                raise BadInput(f"out must be left out with a NAME, got {self.out}")
            folder = packaged_folder(self.name)
            if folder is None:
                known = ", ".join(packaged_names()) or "none"
                raise BadInput(f"NAME must be a packaged model ({known}), got {self.name!r}")
            say((folder / CARD).read_text(encoding="utf-8"))
            return
        rows = []
        for name in packaged_names():
            folder = packaged_folder(name)
            assert folder is not None
            config = read_config(folder)
            results = config.get("results") or {}
            rows.append(
                {
                    "model": name,
                    "method": config["learner"],
                    "data": (config.get("data") or {}).get("name"),
                    "iterations": config["iteration"],
                    "parameters": sum((config.get("parameters") or {}).values()),
                    "MB": round(sum((folder / f).stat().st_size for f in FILES) / 1e6, 1),
                    "MSE, unseen": results.get("mse"),
                    "made by": config.get("command"),
                }
            )
        if not rows:
            say("no models are packaged in this installation")
            return
        say(table([list(row.values()) for row in rows], list(rows[0])))
        say()
        say("`damc models NAME` prints a card, `damc sample NAME` draws images.")
        if self.out is not None:
            say(f"{write_results(self.out, {'models': rows})}  the table")


@dataclass(frozen=True)
class Package:
    """Make a small model folder out of a run: weights, settings and a card, without optimizers.

    Weights are stored in 16 bits, or 8 where that is needed, if reconstructions of unseen images
    stay as good.
    """

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    out: Annotated[Path | None, Option("DIR")] = None
    """The folder to make; if not given, models/NAME, with NAME the preset's, or that of the run
    folder for a run on images of your own."""

    megabytes: Annotated[float, Option("MB")] = 5.0
    """Refuse a model that is larger."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    def run(self) -> None:
        """Packages, and prints what was measured."""
        from damc.learn.sizing import AUTO
        from damc.tasks.package import package_run
        from damc.tasks.trained import Trained

        trained = Trained.open(self.folder, data_root=self.data_root)
        name = self.folder.resolve().name if trained.name == AUTO else trained.name
        out = self.out or Path("models") / name
        done = package_run(trained, out, megabytes=self.megabytes)
        say(f"{done.folder}  {done.bytes / 1e6:.2f} MB, {done.bits} bits a weight")
        for name, value in done.results.items():
            if name.startswith("mse, "):
                say(f"{name}: {value:.6f} on unseen images")
        say(f"sha256 {done.sha256}")


@dataclass(frozen=True)
class Push:
    """Upload the model of a run, or a packaged model, to the Hugging Face Hub with a card.

    Log in before with `hf auth login`, or set HF_TOKEN.
    """

    source: Annotated[str, Option("RUN", positional=True)]
    """The run folder that `damc train` made, or a folder that `damc package` made."""

    repository: Annotated[str, Option("OWNER/NAME", positional=True)]
    """The repository; it is made if it is not there."""

    private: bool = False
    """Make a new repository private."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """For a run of your own networks: the function that makes the learner."""

    def run(self) -> None:
        """Uploads, and prints the address."""
        from damc.tasks.modules import learner_from
        from damc.train.loading import load

        own = None if self.module is None else learner_from(self.module)
        learner = load(self.source, learner=own)
        say(learner.push_to_hub(self.repository, private=self.private))
