"""Where metrics and pictures of a training run go besides its run folder.

A logger is any object with the two methods of `Logger`. Two are here: TensorBoard, and files that
any program reads.
"""

from __future__ import annotations

__all__ = ["JSONLines", "Logger", "TensorBoard", "grid"]

import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from damc.disk import on_disk, write_atomically
from damc.errors import BadInput


class Logger(Protocol):
    """What `damc.fit` asks of a logger."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Takes the metrics of an iteration."""

    def log_image(self, name: str, image: Tensor, step: int) -> None:
        """Takes a picture, ``(C, H, W)`` in [-1, 1] with C of 1 or 3."""


class TensorBoard:
    """Events for TensorBoard, the extra ``damc[tensorboard]``.

    Args:
        folder: where the events go; ``tensorboard --logdir FOLDER`` shows them.
    """

    def __init__(self, folder: str | Path) -> None:
        self._writer = self.writer()(str(folder))

    @staticmethod
    def writer() -> Any:
        """The class that writes; `BadInput` where tensorboard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise BadInput(
                "tensorboard must be installed to write its events: pip install 'damc[tensorboard]'"
            ) from error
        return SummaryWriter

    def log(self, values: Mapping[str, float], step: int) -> None:
        """A scalar for each metric."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_image(self, name: str, image: Tensor, step: int) -> None:
        """A picture."""
        self._writer.add_image(name, _unit(image), step)
        self._writer.flush()


class JSONLines:
    """One JSON record a line in ``FOLDER/log.jsonl``, pictures as ``FOLDER/NAME_STEP.png``.

    A resumed run appends: the last line of a step is the one that counts.

    Args:
        folder: the folder, made if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        with on_disk("write in", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """A line; what is not finite becomes null, which JSON has no number for."""
        plain = {name: v if math.isfinite(v) else None for name, v in values.items()}
        with on_disk("write in", self.folder), (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **plain}) + "\n")

    def log_image(self, name: str, image: Tensor, step: int) -> None:
        """A PNG file."""
        from PIL import Image

        pixels = (_unit(image) * 255).round().to(torch.uint8).permute(1, 2, 0)
        picture = Image.fromarray(pixels.squeeze(2).numpy())
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        safe = re.sub(r"[^\w-]", "_", name)
        write_atomically(self.folder / f"{safe}_{step:08d}.png", buffer.getvalue())


def grid(images: Tensor, columns: int = 4) -> Tensor:
    """Images ``(N, C, H, W)`` side by side in one picture, ``(C, rows * H, columns * W)``."""
    n, c, h, w = images.shape
    columns = min(columns, n)
    rows = math.ceil(n / columns)
    full = images.new_full((rows * columns, c, h, w), 1.0)
    full[:n] = images
    return full.view(rows, columns, c, h, w).permute(2, 0, 3, 1, 4).reshape(c, rows * h, -1)


def _unit(image: Tensor) -> Tensor:
    """A picture on the CPU in [0, 1]."""
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise BadInput(f"image must have shape (1 or 3, H, W), got {tuple(image.shape)}")
    return (image.detach().cpu().float().clamp(-1, 1) + 1) / 2
