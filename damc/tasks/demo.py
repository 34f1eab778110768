"""Training, sampling and reconstruction in a few minutes, on images that need no download."""

from __future__ import annotations

__all__ = ["demo"]

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from damc.learn import presets
from damc.report import plots
from damc.tasks.generate import generate
from damc.tasks.reconstruct import reconstruct
from damc.tasks.summarize import Summary
from damc.tasks.training import Training
from damc.train.loading import load
from damc.train.origin import Origin


def demo(
    out: str | Path = "demo", *, seed: int = 0, progress: bool = True, **loop: Any
) -> Summary | None:
    """Trains the demo's preset, samples, reconstructs unseen images, reports.

    Args:
        out: a run folder; a demo that was stopped is resumed.
        seed: of everything random.
        progress: show a progress bar.
        loop: further options of `damc.fit`.
    """
    data, name, iterations = presets.DEMO
    preset = presets.find_preset(name)
    origin = Origin(data, preset.networks.shape)
    training = Training(
        preset,
        Path(out),
        iterations,
        origin,
        seed=seed,
        changes={"horizon": iterations},
        loop={"progress": progress, "checkpoint_every": max(1, iterations // 10), **loop},
    )
    summary = training.run()
    if summary is None:
        return None
    caption = "Samples of the amortizer and of the energy, unseen images and reconstructions."
    overview = _overview(Path(out), origin, seed)
    return replace(summary, pictures={caption: overview, **summary.pictures})


def _overview(folder: Path, origin: Origin, seed: int) -> Path:
    """Samples and reconstructions in one picture, 16 images a row."""
    learner = load(folder)
    drawn = [generate(learner, 32, source=source, seed=seed) for source in ("amortizer", "energy")]
    held = reconstruct(learner, origin.unseen().images, limit=16, seed=seed)
    return plots.image_grid(
        torch.cat([*drawn, held.x, held.y]),
        folder / "overview.png",
        columns=16,
        names=[
            *("samples: amortizer", ""),
            *("samples: energy", ""),
            "unseen images",
            "reconstructions",
        ],
    )
