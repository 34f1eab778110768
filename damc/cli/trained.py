"""Commands on a trained run: `damc sample`, `damc reconstruct`, `damc report`."""

from __future__ import annotations

__all__ = ["Reconstruct", "Report", "Sample"]

import io
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import device, say, table, write_results
from damc.cli.options import Option


@dataclass(frozen=True)
class Sample:
    """Draw images from a trained run: a picture of them, and samples.npy."""

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    n: Annotated[int, Option("N")] = 64
    """How many images; the picture shows the first 256."""

    source: Annotated[str | None, Option("SOURCE")] = None
    """amortizer, the learned sampler; energy, Langevin chains on the energy itself; gaussian,
    plain noise, to see what the prior adds; other methods have others. The run's best if not
    given."""

    steps: Annotated[int | None, Option("T")] = None
    """Langevin moves of `--source energy`; the run's own number if not given."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same images again."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Where to write; RUN/samples if not given."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Draws, and writes ``SOURCE.png`` and ``samples.npy``."""
        import numpy as np

        from damc.files import write_atomically
        from damc.report import plots
        from damc.tasks.generate import generate, sources
        from damc.train.loop import load

        learner = load(self.folder, device(self.device))
        source = sources(learner)[0] if self.source is None else self.source
        images = generate(learner, self.n, source=source, steps=self.steps, seed=self.seed)
        out = self.out or self.folder / "samples"
        picture = plots.image_grid(images[:256], out / f"{source}.png")
        buffer = io.BytesIO()
        np.save(buffer, images.numpy(), allow_pickle=False)
        array = write_atomically(out / "samples.npy", buffer.getvalue())
        say(f"{picture}  {min(self.n, 256)} of {self.n} images")
        say(f"{array}  all of them, {tuple(images.shape)} in [-1, 1]")


@dataclass(frozen=True)
class Reconstruct:
    """Show images as a trained run sees them, and measure how far off it is."""

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    images: Annotated[tuple[Path, ...], Option("[IMAGES ...]", positional=True)] = ()
    """Pictures, folders of pictures, raw or .npy files; the run's own test images if not given."""

    n: Annotated[int | None, Option("N")] = None
    """Only the first N images."""

    steps: Annotated[int | None, Option("T")] = None
    """Posterior moves after the amortizer's guess; the run's own number if not given."""

    resize: bool = False
    """Crop every image to its center square and resize it to what the model wants."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same reconstructions again."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Where to write; RUN/reconstructions if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one that was trained from."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Reconstructs, prints the errors, writes ``reconstructions.png``."""
        from damc.errors import BadInput
        from damc.report import plots
        from damc.tasks.reconstruct import reconstruct
        from damc.train.loop import load
        from damc.train.origin import Origin, recall
        from damc.train.run import Run

        learner = load(self.folder, device(self.device))
        run = Run.open(self.folder)
        if self.images:
            c, h, w = run.config["config"]["networks"]["shape"]
            origin = Origin("", (c, h, w), resize=self.resize, root=self.data_root)
            sets, kind, note = origin.load(self.images), "the images given", ""
        else:
            remembered = recall(run, self.data_root)
            if remembered is None:
                raise BadInput(f"{self.folder} was trained from Python: say which images to take")
            unseen = remembered.unseen()
            sets, kind, note = [unseen.images], unseen.kind, unseen.note
        start = time.monotonic()
        held = reconstruct(
            learner,
            sets,
            limit=self.n,
            steps=self.steps,
            seed=self.seed,
            progress=sys.stderr.isatty(),
        )
        out = self.out or self.folder / "reconstructions"
        picture = plots.paired_grid(held.x, held.y, out / "reconstructions.png")
        results = {
            "run": str(self.folder),
            "iteration": learner.iteration,
            "judged_on": kind,
            "note": note,
            **held.table,
            "seconds": round(time.monotonic() - start, 2),
        }
        path = write_results(
            out, {**results, "mse_of_each": held.mse.tolist(), "psnr_of_each": held.psnr.tolist()}
        )
        if note:
            say(f"no unseen images: {note}")
        head = ["", "images", "MSE per pixel", "+-", "PSNR, dB"]
        numbers = held.table
        rows = [
            [
                f"model, {kind}",
                numbers["images"],
                numbers["mse"],
                numbers["mse_standard_error"],
                numbers["psnr"],
            ],
            ["mean image", numbers["images"], numbers["mean_image_mse"], None, None],
        ]
        say(table(rows, head))
        say(f"{picture}  the first {len(held.x)}, originals above")
        say(f"{path}  the table, and the error of each image")


@dataclass(frozen=True)
class Report:
    """Make report.html of a run again: curves, samples, reconstructions, energies, settings."""

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one that was trained from."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same pictures again."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Summarizes the run as `damc train` does at its end."""
        from damc.cli.train import show_summary
        from damc.tasks.summarize import summarize
        from damc.train.loop import load
        from damc.train.origin import recall
        from damc.train.run import Run

        learner = load(self.folder, device(self.device))
        run = Run.open(self.folder)
        origin = recall(run, self.data_root)
        unseen = None if origin is None else origin.unseen()
        summary = summarize(learner, run, unseen, seed=self.seed)
        show_summary(self.folder, run.config.get("preset") or learner.name, summary)
