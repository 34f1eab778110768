"""A run in pictures: samples, reconstructions, energies, curves, and one page with all of them."""

from __future__ import annotations

__all__ = ["Recorded", "Summary", "draw_pictures", "record", "summarize", "training_seconds"]

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from damc.errors import Diverged
from damc.learn.learner import Learner
from damc.learn.sizing import AUTO
from damc.report import plots
from damc.report.measured import keep, kept
from damc.report.page import Section, write_report
from damc.report.results import labeled, write_results
from damc.report.verdict import verdict
from damc.tasks.generate import SOURCES, generate
from damc.tasks.reconstruct import reconstruct
from damc.tasks.trained import Trained
from damc.train.origin import Unseen, recall_scan
from damc.train.run import Run


@dataclass(frozen=True)
class Summary:
    """What `summarize` found and wrote."""

    table: dict[str, Any]
    pictures: dict[str, Path] = field(default_factory=dict)
    report: Path | None = None


def draw_pictures(
    learner: Learner, folder: Path, unseen: Unseen | None, *, seed: int = 0, n: int = 64
) -> dict[str, Path]:
    """Grids of samples by every source but the Gaussian, and of reconstructions, by caption.

    Args:
        learner: a learner, trained or in training.
        folder: its run folder; the grids go to ``pictures/NAME_ITERATION.png``.
        unseen: images to reconstruct.
        seed: one seed draws with the same noise each time, so that grids of a run compare.
        n: samples in a grid.
    """
    place, number = folder / "pictures", f"{learner.iteration:08d}"
    drawn = {}
    for source in learner.sources:
        if source != "gaussian" or len(learner.sources) == 1:
            images = generate(learner, n, source=source, seed=seed)
            caption = f"Samples: {SOURCES.get(source, source)}."
            drawn[caption] = plots.image_grid(images, place / f"samples_{source}_{number}.png")
    if unseen is not None and learner.inference is not None:
        held = reconstruct(learner, unseen.images, limit=32, seed=seed)
        caption = f"Reconstructions: {unseen.kind} above, reconstructions below."
        drawn[caption] = plots.paired_grid(held.x, held.y, place / f"reconstructions_{number}.png")
    return drawn


def summarize(
    learner: Learner,
    run: Run,
    unseen: Unseen | None,
    *,
    seed: int = 0,
    limit: int = 1000,
) -> Summary:
    """Draws every picture of a run, measures its reconstructions and writes ``report.html``.

    Args:
        learner: the learner of the run.
        run: its folder.
        unseen: images to reconstruct and to compare energies with; None leaves both out.
        seed: of all draws.
        limit: how many images are reconstructed for the table, at most.
    """
    table: dict[str, Any] = {"iteration": learner.iteration}
    pictures = draw_pictures(learner, run.path, unseen, seed=seed)
    records = run.metrics()
    if unseen is not None:
        table |= {"data": unseen.images.name, "evaluated_on": unseen.kind}
        if learner.inference is not None:
            table |= reconstruct(learner, unseen.images, limit=limit, seed=seed).table
        if unseen.note:
            table["note"] = unseen.note
    if records and "seconds" in records[-1]:
        table["seconds"] = training_seconds(records)
    energies = _energies(learner, unseen, seed)
    errors = [record["mse"] for record in records[-10:] if isinstance(record.get("mse"), float)]
    told = verdict(table, energies, sum(errors) / len(errors) if errors else None)
    table["verdict"] = told
    sections = [
        Section("Result", settings=labeled({k: v for k, v in table.items() if k != "verdict"})),
        Section("Pictures", pictures=dict(pictures)),
    ]
    if energies:
        path = run.path / "pictures" / f"energies_{learner.iteration:08d}.png"
        pictures["Energies of data and of samples."] = plots.histograms(
            energies, path, "energy (lower is likelier)"
        )
        text = (
            "The energy E(z) at latent points inferred from images (data) and at latent points "
            "drawn from every source. In a model that fits, all but those of N(0, I) coincide."
        )
        sections.append(Section("Energies", text, pictures={"Energies of latent points.": path}))
    sections += kept(run.path, learner.iteration)
    if records:
        path = run.path / "pictures" / "curves.png"
        pictures["Training curves."] = plots.curves(_learned(records), path)
        sections.append(Section("Training", pictures={"What was logged in training.": path}))
    scan = recall_scan(run.path)
    if scan:
        sections.insert(1, Section("Images", settings=scan))
    sections.append(Section("Settings", settings=run.config, collapsed=True, names=True))
    name = run.config.get("preset") or learner.name
    if name == AUTO and unseen is not None:
        name = unseen.images.name
    title = f"damc: {name} at iteration {learner.iteration:,}"
    return Summary(table, pictures, write_report(run.path / "report.html", title, sections, told))


class Recorded(NamedTuple):
    """The files of a measurement: its ``results.json``, and the report of the run."""

    results: Path
    report: Path | None


def record(
    trained: Trained,
    place: str,
    results: Mapping[str, Any],
    section: Section,
    unseen: Unseen | None,
) -> Recorded:
    """Keeps a measurement in the run folder, and makes the report again with its section.

    Args:
        trained: the run that was measured.
        place: a folder inside the run folder.
        results: the numbers, for ``results.json``.
        section: what the report shows.
        unseen: images for the rest of the report.
    """
    learner, folder = trained.learner, trained.run.path / place
    known = {"run": trained.run.path, "iteration": learner.iteration}
    path = write_results(folder, {**known, **results})
    keep(folder, learner.iteration, section)
    # The seed of the training, so that the other pictures stay what they were.
    return Recorded(path, summarize(learner, trained.run, unseen, seed=trained.seed).report)


def _energies(learner: Learner, unseen: Unseen | None, seed: int) -> dict[str, torch.Tensor]:
    """Energies by where the latent points come from; empty for a prior without an energy."""
    energy = None if learner.prior is None else learner.prior.energy
    if energy is None:
        return {}
    device = learner.device
    generator = torch.Generator(device).manual_seed(seed)
    found = {}
    if unseen is not None and learner.inference is not None:
        x = unseen.images.batch(torch.arange(min(500, len(unseen.images)))).to(device)
        # A sample of p(z | x) where inference is a chain, and not its mode.
        found["data"] = learner.infer(x, noise=True, generator=generator)
    for source in learner.sources:
        found[source] = learner.sample_latent(500, source=source, generator=generator)
    with torch.no_grad():
        values = {name: energy(z).flatten().cpu() for name, z in found.items()}
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise Diverged(f"the energies of {name} are not finite")
    return values


def _learned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without the clock, which is no curve to look at."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def training_seconds(records: list[dict[str, Any]]) -> float:
    """Training time from a run's metrics, whose clock starts again with every resumption."""
    total = last = 0.0
    for record in records:
        now = float(record.get("seconds") or 0.0)
        total += last if now < last else 0.0
        last = now
    return round(total + last, 1)
