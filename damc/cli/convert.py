"""`damc convert`."""

from __future__ import annotations

__all__ = ["Convert"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from damc.cli.console import say
from damc.cli.options import Option


@dataclass(frozen=True)
class Convert:
    """Convert published .pth weights of a StyleGAN decoder, encoder or VGG16 to .safetensors.

    A .pth file is a pickle, which can run code when it is opened; this command reads only its
    tensors, checks that they fit their network, and writes them under the same names.
    """

    file: Annotated[Path, Option("FILE", positional=True)]
    """The published weights, for instance styleganinv_ffhq256_generator.pth."""

    out: Annotated[Path | None, Option("FILE")] = None
    """Output file; FILE with the suffix .safetensors if not given."""

    def run(self) -> None:
        """Converts, and prints what the file holds."""
        from damc.inversion.convert import convert

        done = convert(self.file, self.out)
        say(f"{done.path}  {done.kind}: {done.tensors} tensors, {done.numbers:,} numbers")
