"""One checkpoint: three files that are written together, and checked when they are read.

```
weights.safetensors      the networks
resume.safetensors       the tensors of the resume state
resume.json              the rest of it, sealed, with the digests of the tensors and the settings
```
"""

from __future__ import annotations

__all__ = ["Checkpoint", "Damaged", "contents", "read"]

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from damc import disk
from damc.disk.tensors import load_weights, pack, to_safetensors, unpack
from damc.errors import BadInput

_TENSORS = ("weights.safetensors", "resume.safetensors")


class Damaged(BadInput):
    """A checkpoint is not what was saved; the message says in what."""


class Checkpoint(NamedTuple):
    """What `Run.load` gives back."""

    iteration: int
    weights: dict[str, Tensor]
    resume: Any


def contents(
    iteration: int,
    weights: Mapping[str, Tensor],
    resume: Any,
    *,
    settings: str,
) -> dict[str, bytes]:
    """The files of a checkpoint, by name.

    Args:
        iteration: learning updates done so far.
        weights: the tensors of the networks, by name.
        resume: anything `damc.disk.tensors.pack` takes.
        settings: the digest of the run's settings, to which the checkpoint belongs.
    """
    tensors, state = pack(resume)
    blobs = dict(zip(_TENSORS, (to_safetensors(weights), to_safetensors(tensors)), strict=True))
    record = {
        "iteration": iteration,
        "settings": settings,
        "sha256": {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()},
        "state": state,
    }
    return {**blobs, "resume.json": disk.seal(record)}


def read(
    folder: Path, iteration: int, settings: str, device: torch.device | str | None = None
) -> Checkpoint:
    """The checkpoint of a folder; raises `Damaged` if anything in it was changed."""
    record = _read_record(folder, iteration, settings)
    try:
        for name in _TENSORS:
            if disk.digest(folder / name) != record["sha256"].get(name):
                raise Damaged(f"{name} is not what was saved")
        weights = load_weights(folder / _TENSORS[0], device)
        resume = unpack(load_weights(folder / _TENSORS[1]), record["state"])
    except BadInput as error:
        raise Damaged(str(error)) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error
    return Checkpoint(iteration, weights, resume)


def _read_record(folder: Path, iteration: int, settings: str) -> dict[str, Any]:
    """What `resume.json` holds; raises `Damaged` unless it is of this iteration and this run."""
    try:
        record = disk.read_sealed(folder / "resume.json")
    except BadInput as error:
        raise Damaged(str(error)) from error
    shapes = {"iteration": int, "settings": str, "sha256": dict}
    for key, kind in shapes.items():
        if not isinstance(record.get(key), kind):
            raise Damaged(f"resume.json has no {key}")
    if record["iteration"] != iteration:
        raise Damaged(f"it holds iteration {record['iteration']}")
    if record["settings"] != settings:
        raise Damaged("it belongs to a run with other settings")
    return record
