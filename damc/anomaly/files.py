"""A detector on disk: a folder of its own, which is a run folder too if it has a network.

```
FOLDER/detector.json           parameters, scaling, names of the parts, digests; sealed
FOLDER/detector.safetensors    what the parts have learned
```
"""

from __future__ import annotations

__all__ = [
    "FORMAT",
    "MEMORY",
    "load",
    "open_detector",
    "save_detector",
    "saved_shape",
    "unseen_images",
]

import hashlib
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from damc.anomaly.combine import Combination
from damc.anomaly.features import tiles
from damc.anomaly.fitting import Fitted, network_kind, recalibrate
from damc.anomaly.parameters import check_parameters
from damc.anomaly.parts import CHEAP, FEATURES, NearNormal, NetworkScore, Part
from damc.anomaly.places import Patches, Places, Surprises
from damc.anomaly.scaling import Columns, Pixels, Scaling, scaling_from, settings_of
from damc.anomaly.scores import SCORES
from damc.data import Images
from damc.disk import digest, parse, read, seal, sensible, unseal, write_atomically
from damc.disk.tensors import load_weights, to_safetensors
from damc.errors import BadInput
from damc.learn import Learner
from damc.tasks.trained import image_shape
from damc.train.loading import find_folder
from damc.train.loading import load as load_learner
from damc.train.origin import recall
from damc.train.run import Run

if TYPE_CHECKING:
    from damc.anomaly.detector import AnomalyDetector

MEMORY = "detector.json"
"""The file that makes a folder a saved detector."""

TENSORS = "detector.safetensors"

FORMAT = 5
"""What the numbers in it mean; another number where scores of the same images have changed."""


def load(
    source: str | Path,
    device: torch.device | str | None = None,
    *,
    learner: Learner | None = None,
    revision: str | None = None,
    sha256: str | None = None,
) -> Any:
    """A trained learner, or the detector that `AnomalyDetector.save` wrote.

    Args:
        source: a run folder, whose newest weights are taken; a folder that `Learner.save` or
            `AnomalyDetector.save` wrote; the name of a packaged model (`damc models` lists them);
            or "owner/name" on the Hugging Face Hub, from the cache where there is no network.
        device: where to compute; the CPU by default.
        learner: for networks of your own, a learner with the same networks: it gets the weights
            and is returned.
        revision: of a repository of the Hub: a branch, tag or commit.
        sha256: of the weights of a published model, as its card gives it; others are refused.
    """
    folder = find_folder(source, revision=revision)
    if learner is not None or not (folder / MEMORY).exists():
        return load_learner(folder, device, learner=learner, sha256=sha256)
    from damc.anomaly.detector import AnomalyDetector

    return AnomalyDetector.from_run(folder, place=device)


def save_detector(detector: AnomalyDetector, folder: str | Path) -> Path:
    """Writes a fitted detector into a folder."""
    folder, learner = Path(folder), detector.learner_
    if learner is not None:
        run = Run.create(
            folder,
            {
                "learner": learner.name,
                "preset": detector.preset,
                "config": learner.config,
                "data": {"name": "given to AnomalyDetector.fit"},
                "training": {"seed": detector.seed_},
            },
        )
        with run.lock():
            run.save(learner.iteration, learner.state_dict(), learner.resume_state(), keep=1)
    elif (folder / "config.json").exists():
        raise BadInput(f"{folder} holds a run, and this detector has no network: give a new folder")
    tensors: dict[str, Tensor] = {
        **{f"combination.{n}": t for n, t in vars(detector.fitted_.combination).items()},
        "normal": detector.fitted_.normal,
        "own": detector.fitted_.own,
    }
    places = detector.fitted_.places
    if places is not None:
        tensors |= {f"places.{name}": value for name, value in places.state().items()}
    for k, part in enumerate(detector.parts_):
        tensors |= {f"{k}.{name}": value.cpu() for name, value in part.state().items()}
    blob = to_safetensors(tensors)
    memory = {
        "format": FORMAT,
        # The random state is used up by `fit`, and may be no plain value.
        "parameters": {**detector.get_params(), "random_state": detector.seed_, "features": None},
        "scaling": settings_of(detector.scaling_),
        "seed": detector.seed_,
        "parts": [part.name for part in detector.parts_],
        "network": learner is not None,
        "features": detector.features is not None,
        "sha256": hashlib.sha256(blob).hexdigest(),
    }
    # The tensors first: a folder counts as a detector once the other file is there.
    write_atomically(folder / TENSORS, blob)
    write_atomically(folder / MEMORY, seal(memory))
    return folder


def open_detector(
    kind: type[AnomalyDetector],
    folder: str | Path,
    normal: Any = None,
    *,
    data_root: Path | None = None,
    limit: int = 1000,
    place: torch.device | str | None = None,
    **parameters: Any,
) -> AnomalyDetector:
    """The detector of a folder: one that `save_detector` wrote, or any trained run.

    Args:
        kind: the class to make.
        folder: the folder.
        normal: held-out normal images that calibrate it and give the threshold; if not given,
            what was saved, or the run's own test images of the classes that it learned.
        data_root: folder of the named data sets, instead of the one that the run remembers.
        limit: largest number of the run's test images to take.
        place: the device of a network.
        parameters: of the detector: quantile, score_kind, samples, verbose.
    """
    path = Path(folder)
    memory = _recall(path, {*kind().get_params()})
    if memory is None:
        run = Run.open(path)
        learner: Learner | None = load_learner(path, place)
        assert learner is not None
        own = {"quality": "best", "preset": run.config.get("preset"), "method": learner.name}
        detector = kind(**{**own, **parameters})
        detector.scaling_, detector.seed_ = Pixels(image_shape(run), None, None), 0
        saved: list[Part] = []
        same = False
    else:
        learner = load_learner(path, place) if memory["network"] else None
        if learner is None and "samples" in parameters:
            raise BadInput(
                "samples must be left out for a detector without a network, got "
                f"{parameters['samples']}"
            )
        detector = kind(**{**memory["parameters"], **parameters})
        detector.scaling_, detector.seed_ = scaling_from(memory["scaling"]), memory["seed"]
        if memory["features"] and detector.features is None:
            raise BadInput(f"{path} was fitted with a network of yours: give it again as features=")
        with sensible(f"{path / MEMORY} is damaged"):
            saved = _saved_parts(memory, learner, detector.features, detector.samples)
        asked = ("score_kind", "samples")  # with others, the saved scores do not hold
        same = all(getattr(detector, name) == memory["parameters"][name] for name in asked)
    with sensible(f"{path} holds parameters that cannot be"):
        check_parameters(detector)
    tensors: dict[str, Tensor] = {} if memory is None else memory["tensors"]
    places = _saved_places(tensors, detector.features)
    if memory is not None and same and normal is None:
        with sensible(f"{path / MEMORY} is damaged"):
            fitted = Fitted(
                detector.scaling_,
                saved,
                learner,
                Combination(**_under(tensors, "combination.")),
                tensors["normal"],
                tensors["own"],
                places,
            )
            return detector._take(fitted)
    detector.n_features_in_ = math.prod(detector.scaling_.shape)
    if normal is None:
        normal = unseen_images(path, data_root, limit)
    held = detector._read(normal, reset=False)
    parts = _asked_parts(detector, saved, learner, len(held))
    return detector._take(recalibrate(parts, learner, held, detector.scaling_, places))


def saved_shape(folder: str | Path) -> tuple[int, int, int] | None:
    """What images a saved detector takes, (C, H, W); None if the folder holds none."""
    from damc.anomaly.detector import AnomalyDetector

    memory = _recall(Path(folder), {*AnomalyDetector().get_params()})
    if memory is None:
        return None
    scaling = scaling_from(memory["scaling"])
    if not isinstance(scaling, Pixels):
        raise BadInput(f"{folder} holds a detector of vectors: images must be scored by another")
    return scaling.shape


def unseen_images(folder: Path, root: Path | None, limit: int) -> Images:
    """Normal images that a run has not learned from, to take the threshold from."""
    origin = recall(Run.open(folder), root) if (folder / "config.json").exists() else None
    if origin is None:
        raise BadInput(
            f"{folder} was trained from Python and knows no test images: "
            "give normal images for the threshold"
        )
    unseen = origin.unseen()
    if unseen.note:
        warnings.warn(
            f"the threshold comes from images that the run has learned: {unseen.note}",
            stacklevel=4,
        )
    return unseen.images.subset(slice(limit))


def _saved_parts(
    memory: dict[str, Any],
    learner: Learner | None,
    features: Callable[[Tensor], Any] | None,
    samples: int,
) -> list[Part]:
    parts: list[Part] = []
    for k, name in enumerate(memory["parts"]):
        if name in FEATURES:
            parts.append(NearNormal(name))
        elif name == "surprise":
            parts.append(Surprises())
        elif name == "patches":
            assert features is not None
            parts.append(Patches(features))
        elif name == "tiles":
            tile = int(memory["parameters"]["tile"])
            parts.append(Patches(partial(tiles, tile=tile), "tiles"))
        else:
            assert learner is not None
            parts.append(NetworkScore(learner, name, samples, memory["seed"]))
        parts[-1].load(_under(memory["tensors"], f"{k}."))
    return parts


def _saved_places(
    tensors: dict[str, Tensor], features: Callable[[Tensor], Any] | None
) -> Places | None:
    state = _under(tensors, "places.")
    if not state:
        return None
    places: Places = Surprises() if features is None else Patches(features)
    places.load(state)
    return places


def _under(tensors: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def _asked_parts(
    detector: AnomalyDetector, saved: list[Part], learner: Learner | None, normal: int
) -> list[Part]:
    """The parts that `score_kind` names, of those saved or of the network."""
    kind = detector.score_kind
    if kind == "auto" and saved:
        return saved
    found = [part for part in saved if part.name == kind]
    if found:
        return found
    if learner is None or kind in CHEAP:
        names = ", ".join(["auto", *(part.name for part in saved)])
        raise BadInput(f"score_kind must be one of {names} for this folder, got {kind!r}")
    if kind == "auto":
        kind = network_kind(learner, detector.scaling_, normal)
    return [NetworkScore(learner, kind, detector.samples, detector.seed_)]


def _recall(folder: Path, parameters: set[str]) -> dict[str, Any] | None:
    """What `save_detector` wrote into the folder, checked, or None.

    Args:
        folder: the folder.
        parameters: names of the detector's parameters, all of which it has.
    """
    path = folder / MEMORY
    if not path.exists():
        return None
    text = read(path)
    if parse(text, path).get("format") != FORMAT:
        raise BadInput(
            f"{path} was saved by a version that scores otherwise: fit and save the detector again"
        )
    memory = unseal(text, path)
    with sensible(f"{path} is damaged"):
        _check(memory, parameters, folder)
    return memory


def _check(memory: dict[str, Any], parameters: set[str], folder: Path) -> None:
    """Reads the tensors; raises whatever comes first if something is missing or cannot be."""
    if not _makes_sense(scaling_from(memory["scaling"])):
        raise ValueError("its scaling cannot be")
    if digest(folder / TENSORS) != memory["sha256"]:
        raise BadInput(f"{folder / MEMORY} is damaged: {TENSORS} is not what was saved")
    memory["tensors"] = load_weights(folder / TENSORS)
    known = {*CHEAP, *SCORES}
    if (
        not memory["parts"]
        or {*memory["parameters"]} != parameters
        or not {*memory["parts"]} <= known
    ):
        raise ValueError("it names other parameters or parts")
    int(memory["seed"]), bool(memory["network"]), bool(memory["features"])


def _makes_sense(scaling: Scaling) -> bool:
    if isinstance(scaling, Columns):
        numbers = all(_is_number(value) for value in (*scaling.mean, *scaling.scale))
        return numbers and len(scaling.mean) == len(scaling.scale) > 0 < min(scaling.scale)
    low, high = scaling.low, scaling.high
    sizes = all(isinstance(side, int) and side > 0 for side in scaling.shape)
    if low is None or high is None:
        return sizes and low is high
    return sizes and _is_number(low) and _is_number(high) and low < high


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
