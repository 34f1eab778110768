"""Detect anomalies among images with a saved detector or a trained run: `damc detect`."""

from __future__ import annotations

__all__ = ["Detect"]

import itertools
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from damc.cli.console import device, say, table
from damc.cli.options import Option

if TYPE_CHECKING:
    from damc.anomaly.detect import Detection
    from damc.anomaly.detector import AnomalyDetector
    from damc.data import Images


@dataclass(frozen=True)
class Detect:
    """Score images by how unusual a trained run or a saved detector finds them: a CSV, pictures of
    both ends, heat maps, a page.

    The threshold is a quantile of the scores of normal images that it has not learned from.
    """

    folder: Annotated[Path, Option("RUN", positional=True)]
    """The folder that `damc train-detector`, `AnomalyDetector.save` or `damc train` made."""

    images: Annotated[tuple[Path, ...], Option("IMAGES ...", positional=True)]
    """Pictures, folders of pictures, raw or .npy files."""

    normal: Annotated[Path | None, Option("IMAGES")] = None
    """Normal images that the run was not trained on, for the threshold; its test images if not
    given."""

    quantile: Annotated[float | None, Option("Q")] = None
    """Fraction of normal images below the threshold; 0.95 if not given."""

    score: Literal[
        "auto",
        "pixels",
        "gradients",
        "spectrum",
        "surprise",
        "tiles",
        "calibrated",
        "joint",
        "authors",
        "reconstruction",
        "own",
    ] = "auto"
    """pixels to tiles: parts of a saved detector; calibrated: how far the error lies above that of
    normal images, or of those with as much detail; joint: minus the log joint of the model;
    authors: that of the paper's code; reconstruction: the squared error; own: the method's; auto:
    all that the detector was saved with, else calibrated."""

    samples: Annotated[int | None, Option("K")] = None
    """Posterior samples that a score averages over; 2 if not given."""

    n: Annotated[int, Option("N")] = 8
    """Number of most and of least anomalous images to show."""

    resize: bool = False
    """Crop every image to its center square and resize it to the model's size."""

    out: Annotated[Path | None, Option("DIR")] = None
    """Output folder; RUN/detect if not given, or RUN/detect-2, ... if that is taken. The same
    command again resumes one that was stopped."""

    data_root: Annotated[Path | None, Option("DIR")] = None
    """Folder of the named data sets; if not given, the one used in training."""

    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute."""

    def run(self) -> None:
        """Scores, prints the ends, writes ``scores.csv``, pictures, ``report.html`` and
        ``results.json``."""
        from damc.anomaly.detect import detect, draw_pictures, names_of
        from damc.report.page import Section, write_report
        from damc.report.results import write_results

        self._check()
        start = time.monotonic()
        detector, sets = self._open()
        out = self.out or _free(self.folder)
        out.mkdir(parents=True, exist_ok=True)
        partial = out / "scores.partial"
        found = detect(detector, sets, names_of(self.images, sets), partial)
        file = found.write_csv(out / "scores.csv")
        pictures = draw_pictures(detector, sets, found, out, self.n)
        results = self._results(detector, found)
        results["seconds"] = round(time.monotonic() - start, 2)
        path = write_results(out, results)
        page = write_report(
            out / "report.html", "Anomalies", [Section("Detection", "", results, pictures)]
        )
        partial.unlink()  # everything is written: the same command begins anew
        self._show(detector, found)
        say(f"{file}  every image with its score")
        for caption, picture in pictures.items():
            say(f"{picture}  {caption.lower()}")
        say(f"{page}  all of it")
        say(f"{path}  the summary")

    def _check(self) -> None:
        """Refuses what cannot be, before anything slow is imported."""
        from damc.data.pictures import check_apart
        from damc.errors import BadInput

        if not self.images:
            raise BadInput("IMAGES must name at least one picture, folder or file, got none")
        if self.n < 1:
            raise BadInput(f"n must be at least 1, got {self.n}")
        if self.out is not None:
            for images in self.images:
                check_apart("out", self.out, images)

    def _open(self) -> tuple[AnomalyDetector, list[Images]]:
        """The detector, and the images to score."""
        from damc.train.origin import Origin

        origin = Origin("", _shape(self.folder), resize=self.resize, root=self.data_root)
        sets = origin.load(self.images, keep=False)  # there may be very many

        from damc.anomaly.detector import AnomalyDetector  # slow to import: after bad input is out

        given: dict[str, Any] = {
            "quantile": self.quantile,
            "score_kind": None if self.score == "auto" else self.score,
            "samples": self.samples,
        }
        detector = AnomalyDetector.from_run(
            self.folder,
            None if self.normal is None else origin.load((self.normal,))[0],
            data_root=self.data_root,
            place=device(self.device),
            verbose=sys.stderr.isatty(),
            **{name: value for name, value in given.items() if value is not None},
        )
        return detector, sets

    def _results(self, detector: AnomalyDetector, found: Detection) -> dict[str, Any]:
        anomalies = int(found.anomalous.sum())
        return {
            "run": str(self.folder),
            "iteration": None if detector.learner_ is None else detector.learner_.iteration,
            "score": [part.name for part in detector.parts_],
            "samples": detector.samples,
            "quantile": detector.quantile,
            "threshold": found.threshold,
            "false_alarms": list(detector.false_alarms_),
            "normal_images": len(detector.normal_scores_),
            "images": len(found.names),
            "anomalies": anomalies,
            "share": anomalies / len(found.names),
            "most_anomalous": [found.names[i] for i in found.order[: self.n]],
        }

    def _show(self, detector: AnomalyDetector, found: Detection) -> None:
        """Prints the most anomalous images, and how many lie above the threshold."""
        rows = [
            [
                found.names[i],
                float(found.scores[i]),
                float(found.p_values[i]),
                "yes" if found.anomalous[i] else "no",
            ]
            for i in found.order[: self.n]
        ]
        say(table(rows, ["most anomalous first", "score", "p-value", "anomaly"]))
        say()
        say(
            f"{int(found.anomalous.sum()):,} of {len(found.names):,} images score above "
            f"{found.threshold:.4g}, as do {100 * (1 - detector.quantile):.2g} % of "
            f"{len(detector.normal_scores_):,} normal ones"
        )


def _free(folder: Path) -> Path:
    """A folder for results in which there are none yet, or only a start of them."""
    for k in itertools.count(1):
        out = folder / ("detect" if k == 1 else f"detect-{k}")
        if not (out / "results.json").exists() or (out / "scores.partial").exists():
            return out
    raise AssertionError


def _shape(folder: Path) -> tuple[int, int, int]:
    """What images a run or a saved detector wants, (C, H, W)."""
    from damc.anomaly.files import saved_shape
    from damc.tasks.trained import image_shape
    from damc.train.run import Run

    saved = saved_shape(folder)
    if saved is not None:
        return saved
    return image_shape(Run.open(folder))
