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
    """Make a .safetensors file of published .pth weights: StyleGAN decoder, encoder or VGG16.

    A .pth file is a pickle and can run code where it is opened; this reads nothing but its tensors,
    checks that they fit their network, and writes them under the same names.
    """

    file: Annotated[Path, Option("FILE", positional=True)]
    """The weights as published, for instance styleganinv_ffhq256_generator.pth."""

    out: Annotated[Path | None, Option("FILE")] = None
    """The file to write; FILE with the ending .safetensors if not given."""

    def run(self) -> None:
        """Converts, and says what it found."""
        from damc.inversion.convert import convert

        done = convert(self.file, self.out)
        say(f"{done.path}  {done.kind}: {done.tensors} tensors, {done.numbers:,} numbers")
