"""Commands that measure: `damc evaluate`, `damc transitions`, `damc cost`."""

from __future__ import annotations

__all__ = ["Cost", "Evaluate", "Transitions"]

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from damc.cli.console import device, say, table, write_results
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.learn import Learner
    from damc.report.page import Section
    from damc.train.origin import Origin, Unseen
    from damc.train.run import Run


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained run: distances of its samples to real images, errors on unseen ones.

    Samples by the amortizer (DAMC), by Langevin on the energy (LEBM) and from N(0, I) are compared
    with training images; unseen images are reconstructed.
    """

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    n: Annotated[int, Option("N")] = 2000
    """How many images are drawn in each way."""

    features: Literal["inception", "pixel-pca"] = "inception"
    """What distances are measured on: the Inception network gives FID and KID; pixel-pca needs no
    file, and its distances are not called FID."""

    inception: Annotated[Path | None, Option("FILE")] = None
    """The Inception file; if not given, $DAMC_INCEPTION, else
    ~/.cache/damc/inception-2015-12-05.pt."""

    real: Annotated[int, Option("N")] = 10_000
    """Compare with the first N training images; their statistics are kept for the next time."""

    unseen: Annotated[Path | None, Option("IMAGES")] = None
    """Images that the run has not seen: pictures, a raw or .npy file; if not given, the test
    images of its data."""

    reconstruct: Annotated[int | None, Option("N")] = None
    """Reconstruct only the first N unseen images; all if not given."""

    no_floor: bool = False
    """Leave out the distance of unseen images, which takes as long as a way of drawing."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same numbers again."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one that was trained from."""

    cache: Annotated[Path | None, Option("DIR")] = None
    """Where statistics of real images are kept; ~/.cache/damc/statistics if not given."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Measures, prints one table, writes it into ``RUN/evaluate`` and into the report."""
        from damc.errors import BadInput
        from damc.tasks.evaluate import choose_features, evaluate
        from damc.train.loop import load
        from damc.train.origin import recall
        from damc.train.run import Run

        where = device(self.device)
        learner, run = load(self.folder, where), Run.open(self.folder)
        origin = recall(run, self.data_root)
        if origin is None:
            raise BadInput(f"{self.folder} was trained from Python: damc.tasks.evaluate takes it")
        unseen = origin.unseen() if self.unseen is None else self._given(origin)
        if unseen.note:
            raise BadInput(f"{unseen.note.rstrip('.')}: give unseen images with --unseen IMAGES")
        train = origin.train()
        features = choose_features(self.features, train, path=self.inception, device=where)
        found = evaluate(
            learner,
            train,
            unseen.images,
            features,
            cache=self.cache or Path.home() / ".cache" / "damc" / "statistics",
            n=self.n,
            real=self.real,
            limit=self.reconstruct,
            floor=not self.no_floor,
            seed=self.seed,
            progress=sys.stderr.isatty(),
        )
        results = {
            "run": str(self.folder),
            "iteration": learner.iteration,
            "data": train.name,
            "judged_on": unseen.kind,
            "seed": self.seed,
            "table": [row._asdict() for row in found.table],
            "distances": {of: list(map(asdict, pair)) for of, pair in found.distances.items()},
            "reconstruction": found.reconstruction and found.reconstruction.table,
            "notes": found.notes,
            "seconds": found.seconds,
        }
        path = write_results(run.path / "evaluate", results)
        say(table(found.table, ["", "measure", "value", "+-", "images"]))
        say()
        for note in found.notes:
            say(f"note: {note}")
        say(f"{path}  the table, and what each distance was measured on ({found.seconds:.0f} s)")
        report = _into_report(learner, run, unseen, "evaluate", found.section)
        say(f"{report}  the run on one page")

    def _given(self, origin: Origin) -> Unseen:
        from damc.train.origin import Unseen

        assert self.unseen is not None
        return Unseen(origin.load((self.unseen,))[0], "the images given", "")


@dataclass(frozen=True)
class Transitions:
    """Follow long Langevin chains on a run's learned prior: do they stay at good images?

    The chains start at N(0, I); images, energies and pixels along them are compared with data.
    """

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    steps: Annotated[int, Option("T")] = 200
    """Moves of every chain; the paper shows 200 and 2500."""

    chains: Annotated[int, Option("N")] = 64
    """How many chains; the picture shows the first 8."""

    seed: Annotated[int, Option("S")] = 0
    """One seed gives the same chains again."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one that was trained from."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Runs the chains, prints one table, writes ``RUN/transitions/STEPS`` and the report."""
        from damc.tasks.transitions import transitions
        from damc.train.loop import load
        from damc.train.origin import recall
        from damc.train.run import Run

        start = time.monotonic()
        learner, run = load(self.folder, device(self.device)), Run.open(self.folder)
        origin = recall(run, self.data_root)
        unseen = None if origin is None else origin.unseen()
        found = transitions(
            learner,
            steps=self.steps,
            chains=self.chains,
            data=None if unseen is None else unseen.images,
            seed=self.seed,
            progress=sys.stderr.isatty(),
        )
        place = f"transitions/{self.steps}"
        pictures = found.draw(run.path / place)
        looks = {f"step {step:,}": look for step, look in found.looks.items()}
        if found.data is not None and unseen is not None:
            looks[f"data, {unseen.kind}"] = found.data
        results = {
            "run": str(self.folder),
            "iteration": learner.iteration,
            "steps": self.steps,
            "chains": self.chains,
            "step_size": found.step_size,
            "seed": self.seed,
            "looks": {name: asdict(look) for name, look in looks.items()},
            "change_since_200": found.change,
            "mixing": found.mixing,
            "note": found.note,
            "energies": {
                "steps": found.kept,
                "mean": found.energies.mean(1).tolist(),
                "spread": found.energies.std(1).tolist(),
            },
            "seconds": round(time.monotonic() - start, 2),
        }
        path = write_results(run.path / place, results)
        head = ["", "pixels", "+-", "spread", "saturated", "energy", "spread"]
        say(table([[name, *list(asdict(look).values())[1:]] for name, look in looks.items()], head))
        say()
        for name, change in found.change.items():
            say(f"{name} of the pixels at the end against step 200: {change:+.1%}")
        if found.mixing:
            say("; ".join(f"{name} {value:.4g}" for name, value in found.mixing.items()))
            say("R-hat is 1 for chains that have mixed, and should stay below 1.01")
        if found.note:
            say(f"note: {found.note}")
        for caption, picture in pictures.items():
            say(f"{picture}  {caption}")
        say(f"{path}  the table, and the energies along the chains")
        report = _into_report(learner, run, unseen, place, found.section(pictures))
        say(f"{report}  the run on one page")


@dataclass(frozen=True)
class Cost:
    """Measure what a preset costs on this machine: parameters, seconds of a draw and of an epoch.

    Paper-size presets want minutes for one round on a CPU: a smaller --batch and --train-batch
    make it shorter.
    """

    preset: Annotated[str, Option("PRESET", positional=True)]
    """Which set-up to measure; `damc presets` lists them."""

    batch: Annotated[int, Option("B")] = 64
    """Latent points drawn together; the paper's is 64."""

    train_batch: Annotated[int | None, Option("B")] = None
    """Images of a training iteration; the preset's number if not given."""

    images: Annotated[int | None, Option("N")] = None
    """Training images of an epoch; those of the preset's data if not given."""

    rounds: Annotated[int, Option("N")] = 7
    """How often everything is timed, in turn; the table shows medians."""

    budget: Annotated[float, Option("SECONDS")] = 60.0
    """No further round begins after so many seconds."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Where to write; costs/PRESET if not given."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Measures, prints one table and writes it as ``results.json``."""
        from damc.learn.presets import find_preset
        from damc.tasks.cost import cost, machine

        preset = find_preset(self.preset)
        found = cost(
            preset,
            batch=self.batch,
            train_batch=self.train_batch,
            images=self.images,
            rounds=self.rounds,
            budget=self.budget,
            device=device(self.device),
            progress=sys.stderr.isatty(),
        )
        counted = len(next(iter(found.timings.values())).seconds)
        results = {
            "preset": preset.name,
            "batch": found.batch,
            "train_batch": found.train_batch,
            "rounds": counted,
            "machine": machine(),
            "table": found.table,
            "seconds_of_each_round": {name: t.seconds for name, t in found.timings.items()},
            "seconds": found.seconds,
        }
        head = ["of", "parameters", "seconds", "least", "most", "ratio"]
        say(table([[row.get(key) for key in head] for row in found.table], ["", *head[1:]]))
        say()
        say(
            f"draws of {found.batch} latent points, iterations of {found.train_batch} images; "
            f"medians of {counted} rounds, all measured in {found.seconds:.0f} s"
        )
        say("ratio: of parameters to the decoder's, of Langevin's seconds to the amortizer's")
        path = write_results(self.out or Path("costs") / preset.name, results)
        say(f"{path}  the table, and the machine")


def _into_report(
    learner: Learner, run: Run, unseen: Unseen | None, place: str, section: Section
) -> Path | None:
    """Keeps a section in the run folder and makes the report again; gives the report's path."""
    from damc.report.measured import keep
    from damc.tasks.summarize import summarize

    keep(run.path / place, learner.iteration, section)
    # The seed of the training, so that the other pictures stay what they were.
    seed = run.config.get("training", {}).get("seed", 0)
    return summarize(learner, run, unseen, seed=seed).report
