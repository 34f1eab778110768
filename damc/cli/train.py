"""`damc train`."""

from __future__ import annotations

__all__ = ["Train", "show_summary"]

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from damc.cli.console import say, table, write_results
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.tasks.summarize import Summary


@dataclass(frozen=True)
class Train:
    """Train a preset on images; the same command again goes on where it stopped.

    On several processes: `damc train PRESET --devices 2`, or, over machines,
    `torchrun --nproc-per-node 2 -m damc -- train PRESET`.
    """

    preset: Annotated[str, Option("PRESET", positional=True)]
    """Which set-up to train; `damc presets` lists them."""

    method: Annotated[str, Option("NAME")] = "damc"
    """Which way of learning; `damc methods` lists them. All of them take any preset's networks."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder; if not given, runs/PRESET, or runs/PRESET-METHOD for other methods than damc.
    If it holds this run already, training resumes."""

    iterations: Annotated[int | None, Option("N")] = None
    """Learning updates in total, counting those already done; the preset's number if not given.
    In a new run rates fall and stages change over so many; one that goes on keeps its schedule."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same run again, bit for bit."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints. One is also written every ten minutes and at the end."""

    data: Annotated[str | None, Option("SOURCE")] = None
    """Images: a name from `damc data`, a folder of pictures, a raw or .npy file, or
    hub:OWNER/NAME. The preset's own data if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    heldout: Annotated[int | None, Option("DIGIT")] = None
    """Leave this class out, to detect it as an anomaly later."""

    resize: bool = False
    """Crop every image to its center square and resize it to what the preset wants; pictures of
    different sizes need it."""

    batch: Annotated[int | None, Option("B")] = None
    """Images in one iteration, over all processes together; the preset's number if not given."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    devices: Annotated[int, Option("N")] = 1
    """How many devices or processes; torchrun's number holds under torchrun."""

    precision: Annotated[str, Option("P")] = "32-true"
    """32-true, or bf16-mixed where the hardware has it."""

    threads: Annotated[int | None, Option("N")] = None
    """Threads for each process; all cores if not given."""

    pictures_every: Annotated[int | None, Option("K")] = None
    """Iterations between pictures; ten times in a run if not given."""

    tensorboard: bool = False
    """Also write TensorBoard events into the run folder."""

    settings: Annotated[
        tuple[tuple[str, ...], ...], Option("NAME=VALUE ...", name="set", repeated=True)
    ] = ()
    """Settings of the algorithm to change, such as updates=3 sigma=0.2."""

    def run(self) -> None:
        """Trains, then prints a table of how it went."""
        from damc.errors import BadInput
        from damc.learn import find_method
        from damc.learn.presets import find_preset
        from damc.tasks.training import Training, parse_settings
        from damc.train.origin import Origin

        preset = find_preset(self.preset)
        texts = [text for group in self.settings for text in group]
        changes = parse_settings(texts, find_method(self.method).settings_type)
        _use_threads(self.threads)
        if self.devices < 1 or (self.pictures_every is not None and self.pictures_every < 1):
            raise BadInput(
                "devices and pictures-every must be at least 1, got "
                f"{self.devices} and {self.pictures_every}"
            )
        loop: dict[str, Any] = {
            "checkpoint_every": self.checkpoint_every,
            "accelerator": self.device,
            "devices": self.devices,
            "precision": self.precision,
            "tensorboard": self.tensorboard,
        }
        training = Training(
            preset,
            self.folder or Path("runs") / _named(preset.name, self.method),
            preset.iterations if self.iterations is None else self.iterations,
            Origin(
                self.data or preset.data,
                preset.networks.shape,
                self.heldout,
                self.resize,
                self.data_root,
            ),
            method=self.method,
            seed=self.seed,
            batch=self.batch,
            changes=changes,
            pictures_every=self.pictures_every,
            loop=loop,
        )
        try:
            summary = training.run()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(stopped(training.folder)) from None
        if summary is not None:
            show_summary(training.folder, preset.name, summary)


def show_summary(folder: Path, preset: str, summary: Summary) -> None:
    """Prints how a training run went, and writes it as ``results.json``."""
    results = {"preset": preset, "run": str(folder), **summary.table}
    words = {
        "iteration": "iterations",
        "mse": "MSE per pixel, in [-1, 1]",
        "mse_standard_error": "its standard error",
        "psnr": "PSNR, dB",
        "mean_image_mse": "MSE of the mean image",
        "judged_on": "judged on",
        "seconds": "seconds of training",
    }
    say(table([[words.get(key, key), _shown(value)] for key, value in results.items()]))
    say()
    for caption, path in summary.pictures.items():
        say(f"{path}  {caption}")
    say(f"{summary.report}  all of this on one page")
    say(f"{write_results(folder, results)}  the table")


def stopped(folder: Path) -> str:
    """Where an interrupted run can go on, in one sentence."""
    from damc.train.run import Run

    saved = Run.open(folder).checkpoints() if (folder / "config.json").is_file() else []
    if not saved:
        return f"stopped before anything was saved in {folder}"
    return f"stopped; {folder} is saved at iteration {saved[-1]}, the same command goes on there"


def _named(preset: str, method: str) -> str:
    return preset if method == "damc" else f"{preset}-{method}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _use_threads(threads: int | None) -> None:
    import torch

    from damc.errors import BadInput

    if threads is not None and threads < 1:
        raise BadInput(f"threads must be at least 1, got {threads}")
    if threads is not None:
        torch.set_num_threads(threads)
