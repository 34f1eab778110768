"""An amortizer on disk: one safetensors file that says how to rebuild it, with a digest."""

from __future__ import annotations

__all__ = ["digest_of", "read_amortizer", "readable", "write_amortizer"]

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from damc.disk import write_atomically
from damc.errors import BadInput


def write_amortizer(
    path: str | Path, weights: Mapping[str, Tensor], config: Mapping[str, Any]
) -> None:
    """Writes weights and arguments to ``path.safetensors``, and the arguments to ``path.json``."""
    file, description = _files(path)
    tensors = {name: t.detach().cpu().contiguous() for name, t in weights.items()}
    text = json.dumps(config, indent=2)
    # One entry: safetensors writes several in an order that differs from time to time.
    about = json.dumps({"config": text, "sha256": digest_of(tensors, text)})
    write_atomically(file, save(tensors, {"amortizer": about}))
    write_atomically(description, text + "\n")


def read_amortizer(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments and the weights of `write_amortizer`."""
    file, _ = _files(path)
    with safe_open(file, "pt") as opened:
        metadata = json.loads((opened.metadata() or {})["amortizer"])
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    if digest_of(weights, metadata["config"]) != metadata["sha256"]:
        raise BadInput("it is not what was saved")
    config = json.loads(metadata["config"])
    return {**config, "widths": tuple(config["widths"])}, weights


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Whatever goes wrong inside, while a file is read and used, is one sentence."""
    try:
        yield
    except Exception as error:
        raise BadInput(f"no amortizer could be read from {path}: {error}") from error


def _files(path: str | Path) -> tuple[Path, Path]:
    """Where weights and description lie; a name such as q-0.1 keeps what follows its dot."""
    path = Path(path)
    stem = path.stem if path.suffix in (".safetensors", ".json") else path.name
    return path.with_name(f"{stem}.safetensors"), path.with_name(f"{stem}.json")


def digest_of(tensors: Mapping[str, Tensor], config: str) -> str:
    """Of what a file holds: names, types, shapes and values of the weights, and the settings."""
    found = hashlib.sha256(config.encode())
    for name in sorted(tensors):
        t = tensors[name]
        found.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        found.update(t.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
