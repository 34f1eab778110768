"""Convert published weights: from a `.pth` file, which is a pickle, to a `.safetensors` file."""

from __future__ import annotations

__all__ = ["Converted", "convert"]

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from damc.disk import on_disk, write_atomically
from damc.disk.tensors import to_safetensors
from damc.errors import BadInput
from damc.inversion.checkpoint import read_checkpoint
from damc.inversion.stylegan import style_decoder_from
from damc.inversion.stylegan_encoder import style_encoder_from
from damc.inversion.vgg import vgg16_from


@dataclass(frozen=True)
class Converted:
    """A converted file."""

    path: Path
    kind: str
    """The name of the network."""
    tensors: int
    """How many tensors the file holds."""
    numbers: int
    """How many numbers they hold together."""


def convert(source: str | Path, out: str | Path | None = None) -> Converted:
    """Convert the weights of a StyleGAN decoder, in-domain encoder or VGG16 to safetensors.

    The file is read with `weights_only=True`, which builds tensors and runs nothing, and must fit
    the network that its keys belong to. Every tensor is kept, under its own key.

    Args:
        source: the `.pth` file, as published.
        out: the file to write; `source` with the suffix `.safetensors` if not given. An existing
            file with other content is not overwritten.
    """
    source = Path(source)
    out = source.with_suffix(".safetensors") if out is None else Path(out)
    if out.suffix != ".safetensors":
        raise BadInput(f"out must have the suffix .safetensors, got {out}")
    state = read_checkpoint(source)
    kind, build = _network(state, source)
    build(state, str(source))
    data = to_safetensors(state)
    if out.is_file():
        with on_disk("read", out):
            same = out.stat().st_size == len(data) and out.read_bytes() == data
        if not same:
            raise BadInput(f"out must be a new file, got {out}, which has other content")
    else:
        write_atomically(out, data)
    return Converted(out, kind, len(state), sum(tensor.numel() for tensor in state.values()))


_NETWORKS: dict[str, tuple[str, Callable[[Mapping[str, Tensor], str], Any]]] = {
    "mapping": ("StyleGAN decoder", style_decoder_from),
    "truncation": ("StyleGAN decoder", style_decoder_from),
    "synthesis": ("StyleGAN decoder", style_decoder_from),
    "block0": ("in-domain encoder", style_encoder_from),
    "layer0": ("VGG16", vgg16_from),
}
"""Networks by the first part of a key that only they have."""


def _network(
    state: Mapping[str, Tensor], source: Path
) -> tuple[str, Callable[[Mapping[str, Tensor], str], Any]]:
    if not state:
        raise BadInput(f"{source} must hold the weights of a network, got no tensors")
    for key in state:
        first = key.partition(".")[0]
        if first in _NETWORKS:
            return _NETWORKS[first]
    raise BadInput(
        f"{source} must hold the weights of a StyleGAN decoder (mapping.*, synthesis.*), its "
        f"encoder (block0.*) or VGG16 (layer0.*), got the key {next(iter(state))!r:.80}"
    )
