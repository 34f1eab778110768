"""Amortized posteriors on disk: everything but the user's log-density, which is code."""

from __future__ import annotations

__all__ = ["networks", "part", "read", "write"]

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.amortize.files import digest_of
from damc.disk import write_atomically
from damc.errors import BadInput
from damc.sampling.whiten import Whiten

_EMBEDDING = 64


def networks(free: int, size: int) -> tuple[Whiten, Amortizer]:
    """Untrained networks of a posterior of `free` coordinates given observations of so many
    numbers: the Gaussian that is regressed on x, and the diffusion model of what is left."""
    whiten = Whiten(free, size)
    encoder = nn.Sequential(
        whiten.features, nn.Linear(size, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(),
        nn.Linear(128, _EMBEDDING),
    )  # fmt: skip
    q = Amortizer(free, encoder, embedding=_EMBEDDING, capacity=0.25, solver="multistep", steps=10)
    return whiten, q


def write(path: str | Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Writes ``path.safetensors``: tensors, what describes them, and a digest of both.

    At any moment the file is the old one or the new one.
    """
    # Copies, as networks share some and a file may not.
    held = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    text = json.dumps(about)
    sealed = json.dumps({"posterior": text, "sha256": digest_of(held, text)})
    write_atomically(_file(path), save(held, {"posterior": sealed}))


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote.

    Raises:
        BadInput: if it is no such file, or not what was written.
    """
    try:
        with safe_open(_file(path), "pt") as opened:
            sealed = json.loads((opened.metadata() or {})["posterior"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if digest_of(tensors, sealed["posterior"]) != sealed["sha256"]:
            raise BadInput("it is not what was saved")
        about: dict[str, Any] = json.loads(sealed["posterior"])
    except Exception as error:
        raise BadInput(f"no amortized posterior could be read from {path}: {error}") from error
    return tensors, about


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors of one network, without the prefix of their names."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path.with_name(f"{path.name}.safetensors")
