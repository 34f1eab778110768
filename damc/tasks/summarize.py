"""A run in pictures: samples, reconstructions, energies, curves, and one page that holds them."""

from __future__ import annotations

__all__ = ["Summary", "draw_pictures", "summarize"]

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from damc.errors import BadInput, Unable
from damc.learn import Learner
from damc.report import plots
from damc.report.measured import kept
from damc.report.page import Section, write_report
from damc.tasks.generate import SOURCES, generate, sources
from damc.tasks.reconstruct import reconstruct
from damc.train.origin import Unseen
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
        learner: a learner, trained or on its way.
        folder: its run folder; the grids go to ``pictures/NAME_ITERATION.png``.
        unseen: images to reconstruct.
        seed: one seed draws with the same noise each time, so grids of a run compare.
        n: samples in a grid.
    """
    place, number = folder / "pictures", f"{learner.iteration:08d}"
    drawn = {}
    ways = sources(learner)
    for source in ways:
        if source != "gaussian" or len(ways) == 1:
            images = generate(learner, n, source=source, seed=seed)
            caption = f"Samples: {SOURCES.get(source, source)}."
            drawn[caption] = plots.image_grid(images, place / f"samples_{source}_{number}.png")
    if unseen is None:
        return drawn
    with contextlib.suppress(Unable):  # not every method has inference
        held = reconstruct(learner, unseen.images, limit=32, seed=seed)
        caption = f"Reconstructions: {unseen.kind} above, the model's below."
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
        limit: at most so many images are reconstructed for the table.
    """
    table: dict[str, Any] = {"iteration": learner.iteration}
    pictures = draw_pictures(learner, run.path, unseen, seed=seed)
    records = run.metrics()
    if unseen is not None:
        table |= {"data": unseen.images.name, "judged_on": unseen.kind}
        with contextlib.suppress(Unable):
            table |= reconstruct(learner, unseen.images, limit=limit, seed=seed).table
        if unseen.note:
            table["note"] = unseen.note
    if records and "seconds" in records[-1]:
        table["seconds"] = _seconds(records)
    sections = [Section("Result", settings=table), Section("Pictures", pictures=dict(pictures))]
    energies = _energies(learner, unseen, seed)
    if energies:
        path = run.path / "pictures" / f"energies_{learner.iteration:08d}.png"
        pictures["Energies of data and of samples."] = plots.histograms(
            energies, path, "energy (lower is likelier)"
        )
        text = (
            "The energy E(z) at latent points inferred from images, drawn from the amortizer, from "
            "Langevin chains on the prior, and from N(0, I). In a model that fits, the first three "
            "lie on each other."
        )
        sections.append(Section("Energies", text, pictures={"Energies of latent points.": path}))
    sections += kept(run.path, learner.iteration)
    if records:
        path = run.path / "pictures" / "curves.png"
        pictures["Training curves."] = plots.curves(_learned(records), path)
        sections.append(Section("Training", pictures={"What was logged in training.": path}))
    sections.append(Section("Settings", settings=run.config))
    title = f"damc: {run.config.get('preset') or learner.name} at iteration {learner.iteration:,}"
    return Summary(table, pictures, write_report(run.path / "report.html", title, sections))


def _energies(learner: Learner, unseen: Unseen | None, seed: int) -> dict[str, torch.Tensor]:
    """Energies by where the latent points come from; empty without energy or amortizer."""
    if learner.prior is None or not learner.amortized:
        return {}
    device = learner.device
    generator = torch.Generator(device).manual_seed(seed)
    found = {}
    if unseen is not None:
        x = unseen.images.batch(torch.arange(min(500, len(unseen.images)))).to(device)
        found["data"] = learner.infer(x, noise=True, generator=generator)
    for source in sources(learner):
        found[source] = learner.sample_latent(500, source, None, generator)
    energy = learner.prior.energy
    assert energy is not None
    with torch.no_grad():
        values = {name: energy(z).flatten().cpu() for name, z in found.items()}
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise BadInput(f"the energies of {name} are not finite: this run has blown up")
    return values


def _learned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without the clock, which is no curve to look at."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def _seconds(records: list[dict[str, Any]]) -> float:
    """Training time over all the calls that a run took; each counts from its own start."""
    total = last = 0.0
    for record in records:
        now = float(record.get("seconds") or 0.0)
        total += last if now < last else 0.0
        last = now
    return round(total + last, 1)
