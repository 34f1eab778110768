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
    """Convert published weights: the authors' DAMC checkpoints to runs, others to .safetensors.

    With --preset, a checkpoint of the authors' training script (.pth.tar) becomes a run folder, on
    which sample, reconstruct, evaluate and the other commands work with the authors' choices.
    Without, the weights of a StyleGAN decoder, encoder or VGG16 (.pth) become a .safetensors file.

    Such a file is a pickle, which can run code when it is opened; this command reads only its
    tensors, and checks that they fit their networks.
    """

    file: Annotated[Path, Option("FILE", positional=True)]
    """The published weights, for instance best.pth.tar or styleganinv_ffhq256_generator.pth."""

    preset: Annotated[str | None, Option("PRESET")] = None
    """The preset that a DAMC checkpoint is of: svhn, celeba64, cifar10, celebahq256 or mnist."""

    folder: Annotated[Path | None, Option("DIR", name="run")] = None
    """The run folder to make; runs/PRESET-authors if not given."""

    heldout: Annotated[int | None, Option("DIGIT")] = None
    """The digit that an anomaly model was trained without."""

    settings: Annotated[
        tuple[tuple[str, ...], ...], Option("NAME=VALUE ...", name="set", repeated=True)
    ] = ()
    """Settings to change, such as sigma=0.1, with which the authors evaluate digit 1."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets, for later commands; if not given, $DAMC_DATA, else ./data."""

    out: Annotated[Path | None, Option("FILE")] = None
    """Output file without --preset; FILE with the suffix .safetensors if not given."""

    def run(self) -> None:
        """Converts, and prints what the file holds."""
        from damc.errors import BadInput

        if self.preset is not None:
            if self.out is not None:
                raise BadInput(
                    f"--out must be left out with --preset, got {self.out}: --run names the folder"
                )
            self._checkpoint(self.preset)
            return
        checkpoint = {
            "--run": self.folder,
            "--heldout": self.heldout,
            "--set": self.settings or None,
            "--data-root": self.data_root,
        }
        for option, value in checkpoint.items():
            if value is not None:
                raise BadInput(
                    f"{option} must come with --preset, which says what the checkpoint is of"
                )
        from damc.inversion.convert import convert

        done = convert(self.file, self.out)
        say(f"{done.path}  {done.kind}: {done.tensors} tensors, {done.numbers:,} numbers")

    def _checkpoint(self, preset: str) -> None:
        from damc.learn.damc import DAMCSettings
        from damc.paper.authors import convert_checkpoint
        from damc.tasks.training import parse_settings

        changes = parse_settings([text for group in self.settings for text in group], DAMCSettings)
        done = convert_checkpoint(
            self.file,
            preset,
            self.folder or Path("runs") / f"{preset}-authors",
            heldout=self.heldout,
            data_root=self.data_root,
            **changes,
        )
        say(
            f"{done.run}  iteration {done.iteration:,}: every one of {done.tensors} tensors, "
            f"{done.numbers:,} numbers"
        )
        say(f"not used: {', '.join(done.unused)}")
        say(f"next: damc sample {done.run}, damc reconstruct {done.run}, damc evaluate {done.run}")
