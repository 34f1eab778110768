"""The main job in a few minutes, on images that come with the installation."""

from __future__ import annotations

__all__ = ["demo"]

from pathlib import Path
from typing import Any

from damc import presets
from damc.tasks.origin import Origin
from damc.tasks.summarise import Summary
from damc.tasks.training import Training


def demo(
    out: str | Path = "demo", *, seed: int = 0, progress: bool = True, **loop: Any
) -> Summary | None:
    """Trains the demo's preset, samples, reconstructs unseen images, reports.

    Args:
        out: a run folder; a demo that was stopped goes on.
        seed: of everything random.
        progress: show a progress bar.
        loop: further options of `damc.fit`.
    """
    data, name, iterations = presets.DEMO
    preset = presets.find(name)
    training = Training(
        preset,
        Path(out),
        iterations,
        Origin(data, preset.networks.shape),
        seed=seed,
        changes={"horizon": iterations},
        loop={"progress": progress, "checkpoint_every": max(1, iterations // 10), **loop},
    )
    return training.run()
