"""`damc toy`."""

from __future__ import annotations

__all__ = ["Toy"]

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import at_least_one, say, use_threads
from damc.cli.options import Option


@dataclass(frozen=True)
class Toy:
    """The paper's two-dimensional example: amortized posteriors against exact ones.

    Trains a sampler q(z | x) on short chains, prints how well a classifier distinguishes its
    samples from exact ones, and writes results.json, posteriors.png and pooled.png.
    """

    seed: Annotated[int, Option("S")] = 0
    """Seed of the model, of the sampler's initial weights and of every draw."""

    out: Annotated[Path, Option("DIR")] = Path("runs/toy")
    """Output folder for the table and the pictures."""

    prior: Literal["pinwheel", "gaussian"] = "pinwheel"
    """The prior of the chains: pinwheel in the paper's text, Gaussian in its code."""

    kernel: Literal["independence", "langevin", "mala"] = "independence"
    """How chains move. independence: MALA moves, each followed by an independence proposal from the
    prior; langevin: the paper's 50 moves of step size 0.1; mala: the same with accept or reject."""

    iterations: Annotated[int | None, Option("N")] = None
    """Learning iterations; 500 if not given. Below 100, the tests at the end are short too."""

    threads: Annotated[int | None, Option("N")] = None
    """Processor threads; torch's choice if not given."""

    def run(self) -> None:
        """Runs the example and prints its table."""
        from damc.toy.experiment import run_toy
        from damc.toy.settings import SHORT, SHORT_TESTS, ToySettings
        from damc.toy.table import table

        use_threads(self.threads)
        at_least_one(iterations=self.iterations)
        settings = ToySettings()
        if self.kernel != "independence":
            settings = replace(settings, kernel=self.kernel, step_size=0.1, steps=50)
        if self.iterations is not None and self.iterations < SHORT:
            settings = replace(settings, **SHORT_TESTS)
            say(
                f"a short run: tests on {settings.heldout} observations with {settings.samples} "
                f"samples each, long chains of {settings.long_steps} moves; {SHORT} or more "
                "iterations are tested in full"
            )
        result = run_toy(self.out, self.seed, self.prior, self.iterations, settings=settings)
        say(table(result))
        for name in ("results.json", "posteriors.png", "pooled.png"):
            say(str(self.out / name))
