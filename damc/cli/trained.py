"""Commands on a trained run: `damc sample`, `damc reconstruct`, `damc report`."""

from __future__ import annotations

__all__ = ["Reconstruct", "Report", "Sample"]

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import at_least_one, device, say, table
from damc.cli.options import Option
from damc.cli.summary import show_summary


@dataclass(frozen=True)
class Sample:
    """Draw images from a trained run: a picture of them, and samples.npy."""

    folder: Annotated[str, Option("RUN", positional=True)]
    """The run folder that `damc train` made, a packaged model (`damc models` lists them), or
    OWNER/NAME on the Hugging Face Hub."""

    n: Annotated[int, Option("N")] = 64
    """Number of images; the picture shows the first 256."""

    source: Annotated[str | None, Option("SOURCE")] = None
    """amortizer: the learned sampler; energy: Langevin chains on the energy; gaussian: N(0, I), to
    see what the prior adds; other methods have others. The run's best source if not given."""

    steps: Annotated[int | None, Option("T")] = None
    """Langevin moves of `--source energy`; the run's number if not given."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of the draws; the same seed gives the same images."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Output folder; RUN/samples if not given, and samples for a model that is no run folder."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """For a run of your own networks: the function that makes the learner."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Draws, and writes ``SOURCE.png`` and ``samples.npy``."""
        from damc.tasks.generate import generate, write_samples
        from damc.tasks.modules import learner_from
        from damc.train.loading import load

        at_least_one(n=self.n)
        own = None if self.module is None else learner_from(self.module)
        learner = load(self.folder, device(self.device), learner=own)
        images = generate(learner, self.n, source=self.source, steps=self.steps, seed=self.seed)
        source = self.source or learner.sources[0]
        run = Path(self.folder)
        out = self.out or (run / "samples" if run.is_dir() else Path("samples"))
        for caption, path in write_samples(images, out, source).items():
            say(f"{path}  {caption}")


@dataclass(frozen=True)
class Reconstruct:
    """Reconstruct images with a trained run, and measure the errors."""

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    images: Annotated[tuple[Path, ...], Option("[IMAGES ...]", positional=True)] = ()
    """Pictures, folders of pictures, raw or .npy files; the run's own test images if not given."""

    n: Annotated[int | None, Option("N")] = None
    """Only the first N images."""

    steps: Annotated[int | None, Option("T")] = None
    """Posterior moves after the amortizer's draw; the run's number if not given."""

    resize: bool = False
    """Crop every image to its center square and resize it to the model's size."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of the inference; the same seed gives the same reconstructions."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Output folder; RUN/reconstructions if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """For a run of your own networks: the function that makes the learner."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Reconstructs, prints the errors, writes ``reconstructions.png``."""
        from damc.tasks.reconstruct import reconstruct_run
        from damc.tasks.trained import Trained

        at_least_one(n=self.n)
        trained = Trained.open(
            self.folder, device=device(self.device), data_root=self.data_root, module=self.module
        )
        subjects = trained.subjects(self.images, resize=self.resize)
        found, files = reconstruct_run(
            trained,
            subjects,
            self.out or self.folder / "reconstructions",
            limit=self.n,
            steps=self.steps,
            seed=self.seed,
            progress=sys.stderr.isatty(),
        )
        if subjects.note:
            say(f"no unseen images: {subjects.note}")
        numbers = found.table
        keys = ("images", "mse", "mse_standard_error", "psnr")
        rows = [
            [f"model, {subjects.kind}", *(numbers[key] for key in keys)],
            ["mean image", numbers["images"], numbers["mean_image_mse"], None, None],
        ]
        say(table(rows, ["", "images", "MSE per pixel", "+-", "PSNR, dB"]))
        for caption, path in files.items():
            say(f"{path}  {caption}")


@dataclass(frozen=True)
class Report:
    """Write report.html of a run again: curves, samples, reconstructions, energies, settings."""

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of the draws; the same seed gives the same pictures."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """For a run of your own networks: the function that makes the learner."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Summarizes the run as `damc train` does at its end."""
        from damc.tasks.summarize import summarize
        from damc.tasks.trained import Trained

        trained = Trained.open(
            self.folder, device=device(self.device), data_root=self.data_root, module=self.module
        )
        summary = summarize(trained.learner, trained.run, trained.unseen, seed=self.seed)
        show_summary(self.folder, summary, {"preset": trained.name})
