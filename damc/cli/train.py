"""`damc train`."""

from __future__ import annotations

__all__ = ["Train"]

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from damc.cli.console import at_least_one, rank, say, shown, stopped, table, use_threads
from damc.cli.options import Option
from damc.cli.summary import show_summary

if TYPE_CHECKING:
    from damc.data import Reading
    from damc.learn.presets import Preset
    from damc.tasks.own_images import Resumed
    from damc.tasks.training import Training
    from damc.train.origin import Origin


@dataclass(frozen=True)
class Train:
    """Train a model of images; the same command again resumes a run that was stopped.

    `damc train PRESET` trains a preset on its data. `damc train --data FOLDER` trains on your
    own images: it looks at all of them first, prints what it found, sizes networks, batch and time
    by them, and holds a tenth of them out to judge the model. `damc train --run DIR` resumes.

    On several processes: `damc train PRESET --devices 2`, or, on several machines,
    `torchrun --nproc-per-node 2 -m damc -- train PRESET`.
    """

    preset: Annotated[str | None, Option("[PRESET]", positional=True)] = None
    """The preset to train; `damc presets` lists them. Without one, networks and settings are sized
    by the images of --data."""

    named: Annotated[str | None, Option("PRESET", name="preset")] = None
    """The preset, as an option."""

    method: Annotated[str | None, Option("NAME")] = None
    """The learning method, damc if not given; `damc methods` lists them. Every method takes every
    preset's networks."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """A function that makes a learner with networks of your own, in place of those of the preset or
    sized by --data; it is imported from the working folder or the installed packages."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder; if not given, runs/PRESET or runs/NAME of the data, with -METHOD for other
    methods than damc. If it holds this run already, training is resumed."""

    iterations: Annotated[int | None, Option("N")] = None
    """Learning updates in total, counting those already done; the preset's number if not given.
    The schedules of a new run have this length; a resumed run keeps its own."""

    seed: Annotated[int | None, Option("S")] = None
    """Seed of everything random, 0 if not given; the same seed gives the same run, bit for bit."""

    checkpoint_every: Annotated[int, Option("K")] = 500
    """Iterations between checkpoints; another is written every ten minutes and at the end."""

    data: Annotated[str | None, Option("SOURCE")] = None
    """Images: a folder of pictures, a CSV file of paths, an .npy, .npz or raw file, a name from
    `damc data`, or hub:OWNER/NAME. The preset's own data if not given."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    size: Annotated[str | None, Option("WIDTHxHEIGHT")] = None
    """Without a preset: bring all images to this size, such as 64x48 or 64, 8 to 512 pixels a
    side. Their own size if not given, or one chosen for pictures of different sizes."""

    resize: bool = False
    """With a preset: cut every image at the center and resize it to the preset's size; needed for
    pictures of different sizes."""

    background: Literal["white", "black"] = "white"
    """What lies under transparent pixels."""

    value_range: Annotated[tuple[float, float] | None, Option("LOW HIGH", name="range")] = None
    """The values of an array that are black and white; told from the array if not given."""

    skip_corrupt: bool = False
    """Leave out picture files that cannot be read; without it they are refused before training."""

    test_fraction: Annotated[float, Option("F")] = 0.1
    """The share of images that is held out to judge the model, where the data have no test images
    of their own; 0 holds out none."""

    heldout: Annotated[int | None, Option("DIGIT")] = None
    """Leave this class out of the training images, to detect it as an anomaly later."""

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
    """Save and stop after this many minutes, with exit code 75; the same command resumes."""

    tensorboard: bool = False
    """Also write TensorBoard events into the run folder."""

    settings: Annotated[
        tuple[tuple[str, ...], ...], Option("NAME=VALUE ...", name="set", repeated=True)
    ] = ()
    """Settings of the algorithm to change, such as updates=3 sigma=0.2."""

    def run(self) -> None:
        """Trains, then prints a table of how it went."""
        use_threads(self.threads)
        at_least_one(
            iterations=self.iterations,
            batch=self.batch,
            devices=self.devices,
            checkpoint_every=self.checkpoint_every,
            pictures_every=self.pictures_every,
        )
        training = self._plan()
        if rank() == 0:
            self._show(training)
        try:
            summary = training.run()
        except KeyboardInterrupt as error:
            raise type(error)(stopped(training.folder)) from None
        if summary is not None:
            show_summary(training.folder, summary, {"preset": training.preset.name})

    def _plan(self) -> Training:
        """The training that the options describe: of a preset, of a run begun, or sized by data."""
        from damc.errors import BadInput
        from damc.learn.presets import find_preset
        from damc.tasks.own_images import plan, resumed, run_name
        from damc.train.origin import Origin

        if self.preset is not None and self.named is not None and self.preset != self.named:
            raise BadInput(f"preset must be given once, got {self.preset} and {self.named}")
        if self.module is not None and self.method is not None:
            raise BadInput(
                "method must be left out with --module, whose factory chooses it, got "
                f"{self.method}"
            )
        name = self.preset or self.named
        if name is not None:
            if self.size is not None:
                raise BadInput(
                    f"size must be left out with a preset, got {self.size}: its networks "
                    "have their own, and --resize brings images to it"
                )
            preset = find_preset(name)
            origin = Origin(
                self.data or preset.data,
                preset.networks.shape,
                self.heldout,
                self.resize,
                self.data_root,
                self._reading(),
                self.test_fraction,
            )
            return self._training(preset, origin, preset.name)
        if self.folder is not None and (self.folder / "config.json").is_file():
            known = resumed(self.folder, self.data, self.data_root, own=self.module is not None)
            self._check_resumed(known.origin)
            return self._training(known.preset, known.origin, "", known)
        if self.data is None:
            raise BadInput(
                "this command needs a PRESET, or --data IMAGES of your own; `damc presets` lists "
                "the presets, see damc train --help"
            )
        if self.heldout is not None:
            raise BadInput(f"heldout must be left out without a preset, got {self.heldout}")
        if self.resize:
            raise BadInput(
                "resize must be left out without a preset, got it: images are brought to one size, "
                "which --size chooses"
            )
        preset, origin = plan(
            self.data,
            size=_size(self.size),
            root=self.data_root,
            reading=self._reading(),
            test_fraction=self.test_fraction,
        )
        return self._training(preset, origin, run_name(self.data))

    def _check_resumed(self, begun: Origin) -> None:
        """Refuses options that differ from those that the run was begun with."""
        from damc.errors import BadInput

        height_width = begun.shape[1:]
        known: dict[str, tuple[Any, Any]] = {
            "size": (_size(self.size) or height_width, height_width),
            "heldout": (begun.heldout if self.heldout is None else self.heldout, begun.heldout),
        }
        for name, unless, was in (
            ("test_fraction", 0.1, begun.test_fraction),
            ("background", "white", begun.reading.background),
            ("value_range", None, begun.reading.value_range),
            ("skip_corrupt", False, begun.reading.skip_corrupt),
            ("resize", False, begun.resize),
        ):
            given = getattr(self, name)
            known[name] = (was if given == unless else given, was)
        for name, (given, was) in known.items():
            if given != was:
                raise BadInput(
                    f"{name} must be that of the run {self.folder}, "
                    f"{'none' if was is None else was}, got {given}: leave it out, or give another "
                    "folder"
                )

    def _training(
        self,
        preset: Preset,
        origin: Origin,
        name: str,
        known: Resumed | None = None,
    ) -> Training:
        from damc.learn import find_method
        from damc.tasks.training import Training, default_folder, parse_settings

        method = self.method or ("damc" if known is None else known.method)
        seed, batch = (0, None) if known is None else (known.seed, known.batch)
        texts = [text for group in self.settings for text in group]
        loop: dict[str, Any] = {
            "checkpoint_every": self.checkpoint_every,
            "accelerator": self.device,
            "devices": self.devices,
            "precision": self.precision,
            "tensorboard": self.tensorboard,
            "max_minutes": self.max_minutes,
        }
        return Training(
            preset,
            self.folder or default_folder(name, method),
            preset.iterations if self.iterations is None else self.iterations,
            origin,
            method=method,
            seed=seed if self.seed is None else self.seed,
            batch=batch if self.batch is None else self.batch,
            changes=parse_settings(texts, find_method(method).settings_type),
            pictures_every=self.pictures_every,
            loop=loop,
            resume=known is not None,
            module=self.module,
        )

    def _reading(self) -> Reading:
        from damc.data import Reading
        from damc.data.catalog import CATALOG

        return Reading(
            self.background,
            self.value_range,
            skip_corrupt=self.skip_corrupt,
            check=self.data is not None and self.data not in CATALOG,
        )

    def _show(self, training: Training) -> None:
        """Prints what was found in one's own images, and what will be trained."""
        from damc.data.catalog import CATALOG
        from damc.learn.presets import PRESETS
        from damc.tasks.presets import network_sizes

        origin, preset = training.origin, training.preset
        train, unseen = origin.train(), origin.unseen()
        if origin.source in CATALOG and preset.name in PRESETS:
            return
        rows = {} if train.scan is None else dict(train.scan.table)
        rows["held out"] = f"{len(unseen.images):,} {unseen.kind}, to judge the model"
        if unseen.note:
            rows["held out"] = f"none: {unseen.note}"
        channels, high, wide = train.shape
        kind = "color" if channels == 3 else "gray"
        rows["training images"] = f"{len(train):,} of {wide}x{high} in {kind}"
        if training.module is not None:
            rows["networks"] = f"those of {training.module}"
        elif preset.name not in PRESETS:
            parts = network_sizes(preset)
            sizes = ", ".join(f"{part} {n:,}" for part, n in parts.items() if n is not None)
            rows["networks"] = f"{preset.networks.latent_dim} latent dimensions; weights: {sizes}"
        took = ""
        own = training.module is not None
        if preset.minutes is not None and training.method == "damc" and not own:
            minutes = max(1, round(preset.minutes * training.iterations / preset.iterations))
            took = f", about {minutes} minute{'s' if minutes > 1 else ''} on 2 cores"
        images = training.batch or preset.batch
        rows["training"] = f"{training.iterations:,} iterations of {images} images{took}"
        say(f"{origin.source}")
        say(table([[f"  {name}", shown(value)] for name, value in rows.items()]))
        say()


def _size(text: str | None) -> tuple[int, int] | None:
    """(height, width) of "WIDTHxHEIGHT", or of one number for both."""
    from damc.data.scan import LARGEST, SMALLEST
    from damc.errors import BadInput

    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise BadInput(f"size must be written WIDTHxHEIGHT, such as 64x48, or 64, got {text!r}")
    width, height = int(parts[0]), int(parts[-1])
    if not SMALLEST <= min(width, height) <= max(width, height) <= LARGEST:
        raise BadInput(f"size must be {SMALLEST} to {LARGEST} pixels a side, got {text}")
    return height, width
