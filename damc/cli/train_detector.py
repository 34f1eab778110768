"""Fit a detector of anomalies to a folder of normal images: `damc train-detector`."""

from __future__ import annotations

__all__ = ["TrainDetector"]

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from damc.cli.console import say
from damc.cli.options import Option


@dataclass(frozen=True)
class TrainDetector:
    """Fit a detector of anomalies to normal images; `damc detect OUT IMAGES` then scores others."""

    images: Annotated[str, Option("IMAGES", positional=True)]
    """Normal images: a folder of pictures, a raw or .npy file, or a name from `damc data`."""

    out: Annotated[Path, Option("DIR")] = Path("detector")
    """The folder to write; it must not hold a detector already."""

    quality: Literal["fast", "balanced", "best"] = "fast"
    """fast: seconds, no network; balanced and best: a network too, minutes, no better on MNIST."""

    contamination: Annotated[float | None, Option("SHARE")] = None
    """Share of anomalies among the images; none if not given."""

    quantile: Annotated[float, Option("Q")] = 0.95
    """Fraction of normal images below the threshold."""

    size: Annotated[int | None, Option("PIXELS")] = None
    """Crop every image to its center square and resize it to this many pixels; needed for pictures
    of different sizes. Then give `damc detect --resize`."""

    tile: Annotated[int | None, Option("PIXELS")] = None
    """Compare tiles of this many pixels a side, a multiple of 8, instead of whole images."""

    seed: Annotated[int, Option("S")] = 0
    """Seed of everything random."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, $DAMC_DATA, else ./data."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where a network learns."""

    def run(self) -> None:
        """Fits, saves, and prints the threshold and which images look least normal."""
        from damc.anomaly.files import MEMORY
        from damc.data import load_images
        from damc.data.pictures import check_apart
        from damc.errors import BadInput
        from damc.report.results import write_results

        if (self.out / MEMORY).exists():
            raise BadInput(f"out must be a new folder, got {self.out}, which holds a detector")
        check_apart("out", self.out, self.images)
        start = time.monotonic()
        images = load_images(self.images, root=self.data_root, size=self.size)

        from damc.anomaly.detector import AnomalyDetector  # slow to import: after bad input is out

        detector = AnomalyDetector(
            quality=self.quality,
            contamination=self.contamination,
            quantile=self.quantile,
            tile=self.tile,
            random_state=self.seed,
            device=self.device,
            verbose=sys.stderr.isatty(),
        ).fit(images)
        detector.save(self.out)
        low, high = detector.false_alarms_
        parts = [part.name for part in detector.parts_]
        results = {
            "images": len(images),
            "shape": list(images.shape),
            "parts": parts,
            "quantile": detector.quantile,
            "contamination": detector.contamination,
            "threshold": detector.threshold_,
            "false_alarms": [low, high],
            "seconds": round(time.monotonic() - start, 2),
        }
        path = write_results(self.out, results)
        shape = "x".join(map(str, images.shape))
        say(f"{len(images):,} images of {shape}, parts {', '.join(parts)}")
        say(
            f"threshold {detector.threshold_:.4g}: between {low:.1%} and {high:.1%} of normal "
            "images will lie above it (90 % confidence)"
        )
        say(f"{self.out}  the detector: damc detect {self.out} IMAGES")
        say(f"{path}  the summary")
