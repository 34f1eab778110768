"""`damc demo`."""

from __future__ import annotations

__all__ = ["Demo"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import stopped
from damc.cli.options import Option
from damc.cli.summary import show_summary


@dataclass(frozen=True)
class Demo:
    """Train, sample, reconstruct and report in a few minutes, without a download."""

    out: Annotated[Path, Option("DIR")] = Path("demo")
    """The run folder; a demo that was stopped is resumed."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of everything random; the same seed gives the same run, bit for bit."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Trains the demo's preset on the embedded images."""
        from damc.learn import presets
        from damc.tasks.demo import demo

        try:
            summary = demo(self.out, seed=self.seed, accelerator=self.device)
        except KeyboardInterrupt as error:
            raise type(error)(stopped(self.out)) from None
        if summary is not None:
            show_summary(self.out, summary, {"preset": presets.DEMO[1]})
