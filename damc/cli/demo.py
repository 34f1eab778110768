"""`damc demo`."""

from __future__ import annotations

__all__ = ["Demo"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.options import Option
from damc.cli.train import show_summary, stopped


@dataclass(frozen=True)
class Demo:
    """The main job in a few minutes, without a download: train, sample, reconstruct, report."""

    out: Annotated[Path, Option("DIR")] = Path("demo")
    """The run folder to write; a demo that was stopped goes on."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same run again, bit for bit."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Trains the demo's preset on the embedded images."""
        from damc.learn import presets
        from damc.tasks.demo import demo

        try:
            summary = demo(self.out, seed=self.seed, accelerator=self.device)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(stopped(self.out)) from None
        if summary is not None:
            show_summary(self.out, presets.DEMO[1], summary)
