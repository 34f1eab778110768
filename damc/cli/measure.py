"""Commands that measure: `damc evaluate`, `damc transitions`, `damc cost`."""

from __future__ import annotations

__all__ = ["Cost", "Evaluate", "Transitions"]

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import at_least_one, device, say, table
from damc.cli.options import Option


@dataclass(frozen=True)
class Evaluate:
    """Measure a trained run: distances of its samples to real images, errors on unseen ones.

    Samples from the amortizer, from Langevin chains on the energy and from N(0, I) are compared
    with training images; unseen images are reconstructed.
    """

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    n: Annotated[int, Option("N")] = 2000
    """Number of images drawn from each source."""

    features: Literal["auto", "inception", "pixel-pca"] = "auto"
    """Features for the distances: the Inception network gives FID and KID; principal components of
    pixels need no file, but give another distance than FID; auto: Inception if its file is
    there."""

    inception: Annotated[Path | None, Option("FILE")] = None
    """The Inception file; if not given, $DAMC_INCEPTION, else
    ~/.cache/damc/inception-2015-12-05.pt."""

    real: Annotated[int, Option("N")] = 10_000
    """Compare with the first N training images; their statistics are cached."""

    unseen: Annotated[Path | None, Option("IMAGES")] = None
    """Images that the run was not trained on: pictures, a raw or .npy file; if not given, the test
    images of its data."""

    reconstruct: Annotated[int | None, Option("N")] = None
    """Reconstruct only the first N unseen images; all if not given."""

    likelihood: bool = False
    """Estimate log Z of the energy prior and log p(x) of unseen images by annealed SMC."""

    likelihood_images: Annotated[int | None, Option("N")] = None
    """Unseen images whose log p(x) is estimated, the first, with --likelihood; 100 if not given."""

    no_floor: bool = False
    """Leave out the distance of the unseen images, which takes as long as that of a source."""

    decompose: bool = False
    """Also measure decoded posterior samples and Gaussians fitted to them: shows which part is
    behind, the decoder, the amortizer's q(z) or the energy."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of the draws; the same seed gives the same numbers."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    cache: Annotated[Path | None, Option("DIR")] = None
    """Cache folder for statistics of real images; ~/.cache/damc/statistics if not given."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """For a run of your own networks: the function that makes the learner."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Measures, prints one table, writes it into ``RUN/evaluate`` and into the report."""
        from damc.errors import BadInput
        from damc.tasks.evaluate import evaluate_run, find_features
        from damc.tasks.trained import Trained

        at_least_one(
            n=self.n,
            real=self.real,
            reconstruct=self.reconstruct,
            likelihood_images=self.likelihood_images,
        )
        if self.likelihood_images is not None and not self.likelihood:
            raise BadInput(
                "likelihood-images must come with --likelihood, got "
                f"{self.likelihood_images} without"
            )
        features, missing = find_features(self.features, self.inception)
        if missing:
            say(f"note: {missing}")
        trained = Trained.open(
            self.folder, device=device(self.device), data_root=self.data_root, module=self.module
        )
        found, files = evaluate_run(
            trained,
            features=features,
            inception=self.inception,
            unseen=self.unseen,
            cache=self.cache,
            n=self.n,
            real=self.real,
            limit=self.reconstruct,
            floor=not self.no_floor,
            likelihood=(self.likelihood_images or 100) if self.likelihood else 0,
            decompose=self.decompose,
            seed=self.seed,
            progress=sys.stderr.isatty(),
        )
        say(table(found.table, ["", "measure", "value", "+-", "images"]))
        say()
        for note in found.notes:
            say(f"note: {note}")
        say(f"{files.results}  the table, with details of each distance ({found.seconds:.0f} s)")
        say(f"{files.report}  the run on one page")


@dataclass(frozen=True)
class Transitions:
    """Run long Langevin chains on a run's learned prior, and compare them with data.

    The chains start at N(0, I). In a model that fits, they reach the energies of data and stay
    there, and their images are no more saturated than data.
    """

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The run folder that `damc train` made."""

    steps: Annotated[int, Option("T")] = 200
    """Moves of each chain; the paper shows 200 and 2500."""

    chains: Annotated[int, Option("N")] = 64
    """Number of chains; the picture shows the first 8."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of the chains; the same seed gives the same chains."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    module: Annotated[str | None, Option("PACKAGE.MODULE:FACTORY")] = None
    """For a run of your own networks: the function that makes the learner."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Runs the chains, prints one table, writes ``RUN/transitions/STEPS`` and the report."""
        from damc.tasks.trained import Trained
        from damc.tasks.transitions import transitions_run

        at_least_one(steps=self.steps, chains=self.chains)
        trained = Trained.open(
            self.folder, device=device(self.device), data_root=self.data_root, module=self.module
        )
        found, pictures, files = transitions_run(
            trained,
            steps=self.steps,
            chains=self.chains,
            seed=self.seed,
            progress=sys.stderr.isatty(),
        )
        kind = "data" if trained.unseen is None else f"data, {trained.unseen.kind}"
        rows = [[name, *list(asdict(s).values())[1:]] for name, s in found.rows(kind).items()]
        say(table(rows, ["", "pixels", "+-", "spread", "saturated", "energy", "spread"]))
        say()
        for name, change in found.change.items():
            say(f"{name} of the pixels at the end relative to step 200: {change:+.1%}")
        if found.mixing:
            say("; ".join(f"{name} {value:.4g}" for name, value in found.mixing.items()))
            say("R-hat is 1 for chains that have mixed, and should be below 1.01")
        if found.note:
            say(f"note: {found.note}")
        for caption, picture in pictures.items():
            say(f"{picture}  {caption}")
        say(f"{files.results}  the table, and the energies along the chains")
        say(f"{files.report}  the run on one page")


@dataclass(frozen=True)
class Cost:
    """Measure what a preset costs on this machine: parameters, seconds of a draw and of an epoch.

    One round of a preset of the paper's size takes minutes on a CPU, fewer with a smaller --batch
    and --train-batch.
    """

    preset: Annotated[str, Option("PRESET", positional=True)]
    """The preset to measure; `damc presets` lists them."""

    batch: Annotated[int, Option("B")] = 64
    """Latent points drawn together; 64 in the paper."""

    train_batch: Annotated[int | None, Option("B")] = None
    """Images of a training iteration; the preset's number if not given."""

    images: Annotated[int | None, Option("N")] = None
    """Training images of an epoch; those of the preset's data if not given."""

    rounds: Annotated[int, Option("N")] = 7
    """How often everything is timed; the table shows medians."""

    budget: Annotated[float, Option("SECONDS")] = 60.0
    """Seconds after which no further round begins."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Output folder; costs/PRESET if not given."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Measures, prints one table and writes it as ``results.json``."""
        from damc.learn.presets import find_preset
        from damc.report.results import write_results
        from damc.tasks.cost import cost

        at_least_one(
            batch=self.batch, train_batch=self.train_batch, images=self.images, rounds=self.rounds
        )
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
        head = ["of", "parameters", "seconds", "least", "most", "ratio"]
        say(table([[row.get(key) for key in head] for row in found.table], ["", *head[1:]]))
        say()
        say(
            f"draws of {found.batch} latent points, iterations of {found.train_batch} images; "
            f"medians of {found.rounds} rounds, measured in {found.seconds:.0f} s"
        )
        say("ratio: of parameters to the decoder's, of Langevin's seconds to the amortizer's")
        folder = self.out or Path("costs") / preset.name
        path = write_results(folder, {"preset": preset.name, **found.results})
        say(f"{path}  the table, and the machine")
