"""Plan the training of images that no preset names: sizes from the data, or from a run begun."""

from __future__ import annotations

__all__ = ["Resumed", "plan", "resumed", "run_name"]

import re
from dataclasses import dataclass, replace
from pathlib import Path

from damc.data import Reading, load_images
from damc.data.catalog import CATALOG
from damc.errors import BadInput
from damc.learn.presets import PRESETS, Preset, Recipe
from damc.learn.sizing import preset_for
from damc.nets.networks import Networks
from damc.train.origin import Origin, recall
from damc.train.run import Run


def plan(
    source: str,
    *,
    size: tuple[int, int] | None = None,
    root: Path | None = None,
    reading: Reading | None = None,
    test_fraction: float = 0.1,
) -> tuple[Preset, Origin]:
    """Networks and settings for a source of images, and where the images come from.

    Every picture of one's own is looked at once, so that one that cannot be read is found before
    training; published sets are not.

    Args:
        source: a folder, a file, a name or a Hub set, as `damc.data.load_images` takes it.
        size: (height, width) to bring all images to; by default their own, or, where they differ,
            `damc.data.scan.common_size`.
        root: folder of the named data sets.
        reading: how files and arrays are read.
        test_fraction: the share that is held out, of a source without test images.
    """
    reading = replace(reading or Reading(), check=source not in CATALOG)
    images = load_images(source, root=root, size=size or "auto", reading=reading)
    if images.scan is not None:
        reading = replace(reading, bits=images.scan.depths)
    origin = Origin(
        source,
        images.shape,
        resize=True,
        root=root,
        reading=reading,
        test_fraction=test_fraction,
        loaded=images,
    )
    return preset_for(images.shape, len(origin.train()), source), origin


@dataclass(frozen=True)
class Resumed:
    """What a run folder says about how to go on with it."""

    preset: Preset
    origin: Origin
    method: str
    seed: int
    batch: int


def resumed(
    folder: Path, source: str | None = None, root: Path | None = None, *, own: bool = False
) -> Resumed:
    """The plan of a run that was begun by `damc train`, from its folder.

    Args:
        folder: the run folder.
        source: where its images are now, if not where they were.
        root: folder of the named data sets, if not the one used before.
        own: whether the caller brings the networks of the run, where those are the user's own.
    """
    run = Run.open(folder)
    known = recall(run, root)
    networks, training = run.config.get("config", {}).get("networks"), run.config.get("training")
    if known is not None and networks is None and not own:
        raise BadInput(
            f"{folder} was trained with networks of your own: give --module "
            "PACKAGE.MODULE:FACTORY again"
        )
    if known is None or not isinstance(training, dict):
        raise BadInput(f"{folder} must be a run of damc train, got another: resume it from Python")
    source = source or known.source
    reading = replace(known.reading, check=source not in CATALOG)
    origin = replace(known, source=source, reading=reading, division=None)
    name, settings = str(run.config.get("preset")), run.config["config"]["settings"]
    if networks is None:
        data = run.config["data"]
        preset = preset_for(data["shape"], int(data["count"]), source)
        flip, shift = bool(training["flip"]), int(training.get("shift", 0))
        preset = replace(preset, flip=flip, shift=shift)
    elif name in PRESETS:
        preset = PRESETS[name]
    else:
        preset = Preset(name, "as in its run folder", "", Networks(**networks), Recipe())
    horizon = 0 if networks is None else int(settings.get("horizon", 0))
    return Resumed(
        replace(preset, iterations=horizon or preset.iterations),
        origin,
        str(run.config.get("learner")),
        int(training["seed"]),
        int(training["batch"]),
    )


def run_name(source: str) -> str:
    """A name for the run of a source: the last part of its path."""
    stem = Path(source.removeprefix("hub:")).expanduser().resolve().stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "images"
