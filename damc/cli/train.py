"""`damc train`."""

from __future__ import annotations

__all__ = ["Train"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from damc.cli.console import stopped, use_threads
from damc.cli.options import Option
from damc.cli.summary import show_summary


@dataclass(frozen=True)
class Train:
    """Train a preset on images; the same command again resumes a run that was stopped.

    On several processes: `damc train PRESET --devices 2`, or, on several machines,
    `torchrun --nproc-per-node 2 -m damc -- train PRESET`.
    """

    preset: Annotated[str, Option("PRESET", positional=True)]
    """The preset to train; `damc presets` lists them."""

    method: Annotated[str, Option("NAME")] = "damc"
    """The learning method; `damc methods` lists them. Every method takes every preset's
    networks."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder; if not given, runs/PRESET, or runs/PRESET-METHOD for other methods than damc.
    If it holds this run already, training is resumed."""

    iterations: Annotated[int | None, Option("N")] = None
    """Learning updates in total, counting those already done; the preset's number if not given.
    The schedules of a new run have this length; a resumed run keeps its own."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of everything random; the same seed gives the same run, bit for bit."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints; another is written every ten minutes and at the end."""

    data: Annotated[str | None, Option("SOURCE")] = None
    """Images: a name from `damc data`, a folder of pictures, a raw or .npy file, or
    hub:OWNER/NAME. The preset's own data if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    heldout: Annotated[int | None, Option("DIGIT")] = None
    """Leave this class out of the training images, to detect it as an anomaly later."""

    resize: bool = False
    """Crop every image to its center square and resize it to the preset's size; needed for
    pictures of different sizes."""

    batch: Annotated[int | None, Option("B")] = None
    """Images in one iteration, over all processes together; the preset's number if not given."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    devices: Annotated[int, Option("N")] = 1
    """Number of devices or processes; under torchrun, torchrun's number is used."""

    precision: Annotated[str, Option("P")] = "32-true"
    """32-true, or bf16-mixed where the hardware supports it."""

    threads: Annotated[int | None, Option("N")] = None
    """Threads for each process; all cores if not given."""

    pictures_every: Annotated[int | None, Option("K")] = None
    """Iterations between pictures; if not given, they are drawn ten times in a run."""

    max_minutes: Annotated[float | None, Option("M")] = None
    """Save and stop after so many minutes, with exit code 75; the same command goes on."""

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
        from damc.tasks.training import Training, default_folder, parse_settings
        from damc.train.origin import Origin

        preset = find_preset(self.preset)
        texts = [text for group in self.settings for text in group]
        changes = parse_settings(texts, find_method(self.method).settings_type)
        use_threads(self.threads)
        for name, value in (("devices", self.devices), ("pictures-every", self.pictures_every)):
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")
        loop: dict[str, Any] = {
            "checkpoint_every": self.checkpoint_every,
            "accelerator": self.device,
            "devices": self.devices,
            "precision": self.precision,
            "tensorboard": self.tensorboard,
            "max_minutes": self.max_minutes,
        }
        training = Training(
            preset,
            self.folder or default_folder(preset.name, self.method),
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
        except KeyboardInterrupt as error:
            raise type(error)(stopped(training.folder)) from None
        if summary is not None:
            show_summary(training.folder, summary, {"preset": preset.name})
