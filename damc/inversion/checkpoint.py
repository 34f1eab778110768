"""Published weights: state dicts of other people's files, read without running any code of theirs.

A `.pth` file is a pickle, and a pickle is a program. `torch.load(weights_only=True)` builds tensors
and refuses everything else; nothing here reads such files in any other way. `damc convert` makes
safetensors of them, once.
"""

from __future__ import annotations

import errno
import statistics
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from damc.errors import BadInput
from damc.files import load_weights, on_disk

__all__ = ["fill", "read_checkpoint", "size_of"]


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a `.safetensors` file, or in any other file as `torch.save` wrote it."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return load_weights(path)
    if not path.is_file():
        raise BadInput(f"there is no weights file {path}: a .pth or .safetensors file is wanted")
    found = _torch_load(path)
    if not isinstance(found, Mapping):
        raise BadInput(f"{path} holds a {type(found).__name__}: a state dict of tensors is wanted")
    state: dict[str, Tensor] = {}
    for key, value in found.items():
        if not isinstance(key, str) or not _is_dense(value):
            raise BadInput(
                f"{path} holds a {type(value).__name__} under the key {key!r:.80}: "
                "names and dense tensors are wanted"
            )
        state[key] = value.detach()
    return state


def fill(
    net: nn.Module,
    state: Mapping[str, Tensor],
    source: str,
    what: str,
    spare: Collection[str] = (),
) -> None:
    """Put a state dict into a network on the meta device; complain about the first misfit.

    Args:
        net: a network whose state dict, every tensor of it, says what is wanted.
        state: the tensors, which the network then shares where they have its dtype.
        source: what the complaint calls the state dict, a path for instance.
        what: what it calls the network.
        spare: keys that may be there and are not used.
    """
    filled: dict[str, Tensor] = {}
    for key, wanted in net.state_dict().items():
        given = state.get(key)
        if given is None and key.endswith(".num_batches_tracked"):
            # Files older than torch 0.4.1 do not count batches, and no result depends on it.
            given = torch.zeros((), dtype=wanted.dtype)
        _check(given, key, wanted, source, what)
        assert given is not None
        filled[key] = given.to(wanted.dtype)
    for key in state:
        if key not in filled and key not in spare:
            raise BadInput(f"{source} has the key {key:.80}, which {what} does not have")
    net.load_state_dict(filled, assign=True)


def size_of(state: Mapping[str, Tensor], default: int, *places: tuple[str, int]) -> int:
    """A size that several tensors tell, each by its key and axis; the default if none of them does.

    The most common answer, at least 1: one wrong tensor in a file does not change what the others
    say, so the complaint is about that one.
    """
    found = [
        state[key].shape[axis] for key, axis in places if key in state and axis < state[key].ndim
    ]
    return max(statistics.mode(found), 1) if found else default


def _torch_load(path: Path) -> Any:
    with on_disk("read", path):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except Exception as error:
            # A damaged file can fail in any way inside the reader, by a seek to before its start
            # too (EINVAL); what else the system says is not about the content.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            if "GLOBAL" in str(error):
                why = "holds objects other than tensors, which damc does not open"
            else:
                why = "is truncated or was not written by torch.save"
            raise BadInput(f"{path} {why}: a state dict of tensors is wanted") from error


def _is_dense(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
        and not value.is_meta
    )


def _check(given: Tensor | None, key: str, wanted: Tensor, source: str, what: str) -> None:
    if given is None:
        raise BadInput(
            f"{source} lacks the key {key}: {what} wants it, of shape {tuple(wanted.shape)}"
        )
    if given.shape != wanted.shape:
        raise BadInput(
            f"{source} has the key {key} of shape {tuple(given.shape)}: "
            f"{what} wants {tuple(wanted.shape)}"
        )
    if given.is_floating_point() != wanted.is_floating_point():
        raise BadInput(f"{source} has the key {key} of {given.dtype}: {wanted.dtype} is wanted")
    if not given.isfinite().all():
        raise BadInput(f"{source} has the key {key} with values that are not finite numbers")
