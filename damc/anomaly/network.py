"""The network of a detector: which one, how long it learns, and its training."""

from __future__ import annotations

__all__ = ["QUALITIES", "NetworkPlan", "for_network"]

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from damc.anomaly.scaling import Columns, Scaling, kind_of
from damc.anomaly.sizing import network_shape, preset_for_images, preset_for_vectors
from damc.data import Images
from damc.data.sources import ArrayStore
from damc.errors import BadInput
from damc.learn import Learner, find_method
from damc.learn.presets import Preset, find_preset
from damc.randomness import global_seed

QUALITIES = ("fast", "balanced", "best")
"""No network; one that learns for about 3 minutes on two cores; for about 20."""

_PART = 64  # large images averaged down at a time

_SHARE = {"balanced": 0.2, "best": 1.0}  # of a preset's iterations


@dataclass(frozen=True)
class NetworkPlan:
    """What the parameters of a detector say about its network.

    Attributes:
        quality: "balanced" or "best".
        preset: by name; None sizes networks by the data's shape.
        method: a name in `damc.learn.METHODS`.
        iterations: learning updates; None follows from the preset and the quality.
        batch: rows or images of an update; None is the preset's number.
        settings: changes to the method's settings.
        device: "auto", "cpu" or "gpu".
        verbose: show a progress bar.
    """

    quality: str
    preset: str | None
    method: str
    iterations: int | None
    batch: int | None
    settings: dict[str, Any] | None
    device: str
    verbose: bool

    def learner(self, scaling: Scaling, seed: int) -> Learner:
        """The learner with fresh weights."""
        preset = self._preset(scaling)
        with global_seed(seed):
            return find_method(self.method).from_preset(preset, **(self.settings or {}))

    def train(self, learner: Learner, rows: Images, scaling: Scaling, seed: int) -> Learner:
        """Learns from images, large ones averaged down, or vectors as images ``(1, 1, d)``."""
        from damc.train.loop import fit

        preset = self._preset(scaling)
        shape = preset.networks.shape
        if rows.shape != shape:
            parts = torch.split(torch.arange(len(rows)), _PART)
            small = [for_network(rows.batch(part), shape) for part in parts]
            rows = Images(ArrayStore(torch.cat(small).numpy(), -1.0), name=rows.name)
        return fit(
            learner,
            rows,
            iterations=preset.iterations,
            batch=preset.batch,
            seed=seed,
            flip=preset.flip,
            shift=preset.shift,
            accelerator=self.device,
            progress=self.verbose,
        ).eval()

    def check(self) -> None:
        """Refuses parameters that cannot be, before any data are looked at."""
        for name in ("iterations", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")
        find_method(self.method)

    def _preset(self, scaling: Scaling) -> Preset:
        """The preset to learn with, its lengths as asked for."""
        if isinstance(scaling, Columns):
            if self.preset is not None:
                raise BadInput(f"the preset {self.preset!r} is for images, and X holds vectors")
            preset = preset_for_vectors(scaling.shape[2])
        elif self.preset is None:
            preset = preset_for_images(network_shape(scaling.shape))
        else:
            preset = find_preset(self.preset)
            if preset.networks.shape != scaling.shape:
                raise BadInput(
                    f"X must hold {kind_of(preset.networks.shape)} for the preset "
                    f"{self.preset!r}, got {kind_of(scaling.shape)}"
                )
        planned = max(1, round(_SHARE[self.quality] * preset.iterations))
        iterations = self.iterations or planned
        recipe = replace(preset.recipe, horizon=iterations)
        return replace(
            preset, recipe=recipe, iterations=iterations, batch=self.batch or preset.batch
        )


def for_network(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images x ``(B, C, H, W)`` as a network for images (C, h, w) takes them: averaged down."""
    if x.shape[1:] == shape:
        return x
    return functional.interpolate(x, (shape[1], shape[2]), mode="area")
