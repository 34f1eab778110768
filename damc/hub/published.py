"""A published model: a folder with weights, settings and a card, as the Hub and wheels hold it.

```
FOLDER/model.safetensors    the weights, in 32, 16 or 8 bits
FOLDER/config.json          how to build the model, how it was trained, the digest of the weights
FOLDER/README.md            the card, made out of config.json
```
Unlike a run folder it has nothing that only training needs.
"""

from __future__ import annotations

__all__ = [
    "CARD",
    "CONFIG",
    "FILES",
    "WEIGHTS",
    "Published",
    "is_published",
    "make_card",
    "packed",
    "read_config",
    "read_model",
    "unpacked",
    "write_model",
]

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from damc.disk import on_disk, write_atomically
from damc.disk.tensors import load_weights, to_safetensors
from damc.errors import BadInput

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FILES = (WEIGHTS, CONFIG, CARD)
_SCALE = ":scale"
FORMAT = 1
"""Version of the layout above; another one is refused, not guessed at."""


class Published(NamedTuple):
    """What `read_model` gives back."""

    config: dict[str, Any]
    weights: dict[str, Tensor]


def is_published(folder: str | Path) -> bool:
    """Whether a folder holds a published model, and not a run."""
    return (Path(folder) / WEIGHTS).is_file() and (Path(folder) / CONFIG).is_file()


def write_model(
    folder: str | Path,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    bits: int = 32,
) -> Path:
    """Writes a model and its card into a folder.

    Args:
        folder: the folder, made if it is not there.
        weights: tensors by name.
        config: plain values: "learner", "config", "iteration", and what the card tells.
        bits: of a stored number: 32, 16 or 8, see `packed`.
    """
    folder = Path(folder)
    blob = to_safetensors(packed(weights, bits))
    full = {
        "format": FORMAT,
        "damc": _version(),
        **config,
        "bits": bits,
        "sha256": hashlib.sha256(blob).hexdigest(),
    }
    try:
        text = json.dumps(full, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise BadInput(f"config must hold plain JSON values, got {error}") from error
    write_atomically(folder / WEIGHTS, blob)
    write_atomically(folder / CARD, make_card(full))
    return write_atomically(folder / CONFIG, text).parent


def read_config(folder: str | Path) -> dict[str, Any]:
    """What a published model says of itself."""
    path = Path(folder) / CONFIG
    with on_disk("read", path):
        text = path.read_bytes()
    try:
        config = json.loads(text)
        version = config["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} must describe a model of damc, got another file") from error
    if version != FORMAT:
        raise BadInput(f"{path} must have format {FORMAT}, got {version!r}: update damc")
    return dict(config)


def read_model(folder: str | Path, *, sha256: str | None = None) -> Published:
    """Reads a model; weights that are not what was published are refused.

    Args:
        folder: the folder.
        sha256: the digest that you expect, for instance the one on the card. It also guards
            against a folder whose settings were exchanged together with the weights.
    """
    folder = Path(folder)
    config = read_config(folder)
    with on_disk("read", folder / WEIGHTS):
        found = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    for wanted in (config.get("sha256"), sha256):
        if wanted is not None and found != wanted.lower():
            raise BadInput(
                f"{folder / WEIGHTS} must have the sha256 {wanted}, got {found}: the file was "
                "damaged or exchanged"
            )
    if "sha256" not in config:
        raise BadInput(f"{folder / CONFIG} must give the sha256 of {WEIGHTS}, got none")
    weights = load_weights(folder / WEIGHTS)
    return Published(config, unpacked(weights))


def packed(weights: Mapping[str, Tensor], bits: int) -> dict[str, Tensor]:
    """Weights as they are stored.

    With 16 bits, 32-bit tensors are rounded to half precision. With 8, matrices are whole numbers
    from -127 to 127 and, under ``NAME:scale``, a factor for each row; the rest has 16 bits.

    Args:
        weights: tensors by name.
        bits: 32, 16 or 8.
    """
    if bits not in (32, 16, 8):
        raise BadInput(f"bits must be 32, 16 or 8, got {bits}")
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if bits == 32 or tensor.dtype != torch.float32:
            stored[name] = tensor
        elif bits == 8 and tensor.ndim > 1:
            scale = tensor.detach().abs().flatten(1).amax(1).clamp(min=1e-30) / 127
            rows = scale.view(-1, *[1] * (tensor.ndim - 1))
            stored[name] = (tensor.detach() / rows).round().to(torch.int8)
            stored[f"{name}{_SCALE}"] = scale
        else:
            stored[name] = tensor.half()
            if not bool(torch.isfinite(stored[name]).all()):
                raise BadInput(f"bits must be 32 for weights beyond 65,504, got such in {name}")
    return stored


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in 32 bits from what `packed` gave."""
    weights: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        scale = stored.get(f"{name}{_SCALE}")
        if scale is not None:
            weights[name] = tensor.float() * scale.view(-1, *[1] * (tensor.ndim - 1))
        elif not name.endswith(_SCALE):
            weights[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return weights


def make_card(config: Mapping[str, Any]) -> str:
    """The model card: what it is, how to use it, data, command, results, hash."""
    name = config.get("preset") or config["learner"]
    parts = config.get("parameters") or {}
    data, results = config.get("data") or {}, config.get("results") or {}
    lines = [
        "---",
        "library_name: damc",
        "tags: [damc, energy-based-model, generative]",
        "---",
        f"# {name}",
        "",
        f"A model of images, learned by the method `{config['learner']}` of damc "
        f"{config['damc']} in {config['iteration']:,} iterations.",
        "",
        "```python",
        "import damc",
        "",
        'model = damc.load("THIS REPOSITORY OR FOLDER")',
        "images = model.sample(16)  # (16, C, H, W) in [-1, 1]",
        "```",
        "",
        "| network | parameters |",
        "|---|---|",
        *(f"| {part} | {size:,} |" for part, size in parts.items()),
        "",
        "## Data",
        "",
        *(f"- {key}: {_shown(value)}" for key, value in data.items() if value is not None),
        *([] if data else ["Not recorded."]),
        "",
        "## Command",
        "",
        *_command(config.get("command")),
        "",
        "## Results",
        "",
        *_table(results),
        "",
        "## Hash",
        "",
        f"sha256 of `{WEIGHTS}` ({config['bits']} bits a weight): `{config['sha256']}`",
        "",
    ]
    return "\n".join(lines)


def _command(command: Any) -> list[str]:
    return ["Not recorded."] if not command else ["```sh", str(command), "```"]


def _table(results: Mapping[str, Any]) -> list[str]:
    if not results:
        return ["Not measured."]
    rows = [f"| {key} | {_shown(value)} |" for key, value in results.items() if value is not None]
    return ["| measure | value |", "|---|---|", *rows]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value))
    return str(value)


def _version() -> str:
    try:
        return importlib.metadata.version("damc")
    except importlib.metadata.PackageNotFoundError:
        return "from source"
