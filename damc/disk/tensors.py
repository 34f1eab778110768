"""Tensors in files, safe to write and safe to read: safetensors, and nested states.

Nothing is pickled: tensors are safetensors, the rest is JSON, written as `damc.disk` writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from damc.disk import on_disk, read
from damc.errors import BadInput

__all__ = ["load_weights", "pack", "to_safetensors", "unpack"]


def load_weights(path: str | Path, device: torch.device | str | None = None) -> dict[str, Tensor]:
    """Read a safetensors file. Anything else is refused; pickles are recognized, never opened."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"weights must be a safetensors file, got no file at {path}")
    with on_disk("read", path):
        try:
            return safetensors.torch.load_file(path, "cpu" if device is None else str(device))
        except safetensors.SafetensorError as error:
            start = read(path, 4)
            # Only after safetensors has refused it: a good file may start with these bytes too.
            if start[:2] == b"PK" or start[:1] == b"\x80":
                what = "a pickle or zip archive (.pt, .pth, .ckpt), which damc never opens"
            else:
                what = f"truncated or another kind of file ({error})"
            raise BadInput(f"{path} must be a safetensors file, got {what}") from error


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a safetensors file. Views and shared memory are stored as separate copies."""
    return safetensors.torch.save(
        {name: _portable(tensor, f"the tensor {name!r}") for name, tensor in tensors.items()}
    )


def pack(nested: Any) -> tuple[dict[str, Tensor], Any]:
    """Split nested dicts, lists and tuples into tensors, on the CPU, and a JSON value.

    >>> tensors, value = pack({0: (torch.zeros(2), math.inf)})
    >>> value
    {'$dict': [[0, {'$tuple': [{'$tensor': '0'}, {'$float': 'inf'}]}]]}
    >>> unpack(tensors, value)
    {0: (tensor([0., 0.]), inf)}
    """
    tensors: dict[str, Tensor] = {}

    def encode(value: Any, where: str) -> Any:
        if isinstance(value, Tensor):
            name = str(len(tensors))
            tensors[name] = _portable(value, where)
            return {"$tensor": name}
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": str(float(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            items = [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, Mapping):
            pairs = [
                [encode(key, f"a key of {where}"), encode(item, f"{where}[{key!r}]")]
                for key, item in value.items()
            ]
            if all(isinstance(key, str) and not key.startswith("$") for key in value):
                return dict(pairs)
            return {"$dict": pairs}
        raise BadInput(
            f"{where} is a {type(value).__name__}: a resume state holds only tensors, numbers, "
            "strings, booleans, None, and dicts, lists and tuples of them"
        )

    return tensors, encode(nested, "state")


def unpack(tensors: Mapping[str, Tensor], value: Any) -> Any:
    """Undo `pack`."""
    if isinstance(value, list):
        return [unpack(tensors, item) for item in value]
    if not isinstance(value, dict):
        return value
    if any(key.startswith("$") for key in value) and len(value) == 1:
        match value:
            case {"$tensor": str(name)} if name in tensors:
                return tensors[name]
            case {"$float": "inf" | "-inf" | "nan" as text}:
                return float(text)
            case {"$tuple": list(items)}:
                return tuple(unpack(tensors, item) for item in items)
            case {"$dict": list(pairs)}:
                return {unpack(tensors, key): unpack(tensors, item) for key, item in pairs}
    if any(key.startswith("$") for key in value):
        raise BadInput(f"a packed state has no entry {value!r:.60}")
    return {key: unpack(tensors, item) for key, item in value.items()}


def _portable(tensor: Tensor, where: str) -> Tensor:
    """A contiguous copy on the CPU: safetensors stores no views and no shared memory."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.dtype == torch.complex128:
        raise BadInput(
            f"{where} is a {tensor.dtype} tensor of layout {tensor.layout}: "
            "safetensors stores dense tensors up to complex64"
        )
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
