"""State dicts from published files, read without running any code in them.

A `.pth` file is a pickle, and a pickle is a program. `torch.load(weights_only=True)` builds tensors
and refuses everything else; these files are read in no other way. `damc convert` converts them to
safetensors.
"""

from __future__ import annotations

import errno
import statistics
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from damc.disk import on_disk, open_plain
from damc.disk.tensors import load_weights
from damc.errors import BadInput

__all__ = ["fill", "load_tensors", "read_checkpoint", "size_of"]


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a `.safetensors` file, or in any other file as `torch.save` wrote it."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return load_weights(path)
    if not path.is_file():
        raise BadInput(f"weights must be a .pth or .safetensors file, got no file at {path}")
    found = load_tensors(path)
    if not isinstance(found, Mapping):
        raise BadInput(f"{path} must hold a state dict of tensors, got {type(found).__name__}")
    state: dict[str, Tensor] = {}
    for key, value in found.items():
        if not isinstance(key, str) or not _is_dense(value):
            raise BadInput(
                f"{path} must hold dense tensors by name, got a {type(value).__name__} under the "
                f"key {key!r:.80}"
            )
        state[key] = value.detach()
    return state


def load_tensors(path: Path) -> Any:
    """Whatever `torch.save` wrote of tensors and plain values; anything else is refused."""
    _check_stored(path)
    with on_disk("read", path):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:
            # A damaged file can fail in any way inside the reader, even by a seek to before its
            # start (EINVAL); other errors of the system are not about the content.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            if "GLOBAL" in str(error):
                why = "a file with objects other than tensors, which damc does not open"
            else:
                why = "a file that is truncated or was not written by torch.save"
            raise BadInput(f"{path} must hold a state dict of tensors, got {why}") from error


def fill(
    net: nn.Module,
    state: Mapping[str, Tensor],
    source: str,
    what: str,
    spare: Collection[str] = (),
) -> None:
    """Load a state dict into a network on the meta device; raise for the first tensor that differs.

    Args:
        net: the network; its state dict defines the expected keys and shapes.
        state: the tensors, which the network then shares where they have its dtype.
        source: the name of the state dict in error messages, for instance a path.
        what: the name of the network in error messages.
        spare: keys that are allowed and not used.
    """
    filled: dict[str, Tensor] = {}
    for key, expected in net.state_dict().items():
        given = state.get(key)
        if given is None and key.endswith(".num_batches_tracked"):
            # Files older than torch 0.4.1 do not count batches, and no result depends on it.
            given = torch.zeros((), dtype=expected.dtype)
        _check(given, key, expected, source, what)
        assert given is not None
        filled[key] = given.to(expected.dtype)
    for key in state:
        if key not in filled and key not in spare:
            raise BadInput(f"{source} must have the keys of {what} only, got the key {key:.80}")
    net.load_state_dict(filled, assign=True)


def size_of(state: Mapping[str, Tensor], default: int, *places: tuple[str, int]) -> int:
    """A size that several tensors have, each given by its key and axis; the default if none does.

    The most common value, at least 1: one wrong tensor in a file does not change it, so that the
    error message is about that tensor.
    """
    found = [
        state[key].shape[axis] for key, axis in places if key in state and axis < state[key].ndim
    ]
    return max(statistics.mode(found), 1) if found else default


def _check_stored(path: Path) -> None:
    """Refuses an archive of compressed or overlapping members, which could fill the memory:
    torch.save stores its tensors as they are."""
    with on_disk("read", path), open_plain(path) as file:
        if not zipfile.is_zipfile(file):
            return  # the older format, which is not compressed either
        try:
            members = zipfile.ZipFile(file).infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            return  # torch's own reader says what is wrong
        claimed, held = sum(member.file_size for member in members), path.stat().st_size
    if claimed > held:
        raise BadInput(
            f"{path} must hold tensors that are stored uncompressed, as torch.save does, got "
            f"{claimed} bytes of content in {held}"
        )


def _is_dense(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def _check(given: Tensor | None, key: str, expected: Tensor, source: str, what: str) -> None:
    if given is None:
        raise BadInput(
            f"{source} must have the key {key} of shape {tuple(expected.shape)} for {what}, "
            "got no such key"
        )
    if given.shape != expected.shape:
        raise BadInput(
            f"{source} must have the key {key} of shape {tuple(expected.shape)} for {what}, "
            f"got {tuple(given.shape)}"
        )
    if given.is_floating_point() != expected.is_floating_point():
        raise BadInput(f"{source} must have the key {key} of {expected.dtype}, got {given.dtype}")
    if not given.isfinite().all():
        raise BadInput(f"{source} must have finite values at the key {key}, got NaN or infinity")
