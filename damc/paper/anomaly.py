"""Detecting a held-out digit of MNIST: the paper's table of areas under precision-recall curves.

One split for every method, that of Zenati et al. (2018) with disjoint train and test parts: the
other nine digits are permuted, four fifths are trained on, and the test set is the rest and every
image of the held-out digit. The last 2,000 training images are not trained on: they calibrate the
score. Results are those of the last iterate. Cheap baselines and `AnomalyDetector` are rows, too.
"""

from __future__ import annotations

__all__ = ["Anomaly"]

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from damc.anomaly.scores import FLOOR, Calibration, detail_of, error_and_detail, misfit, score
from damc.data import Images, heldout_split, load_images
from damc.errors import BadInput
from damc.learn import find_method
from damc.learn.learner import Learner
from damc.learn.presets import find_preset
from damc.metrics.detection import Detection, detection_scores
from damc.paper.baselines import BASELINES, baseline_scores
from damc.paper.table import Cell, Measure, Options, Table
from damc.paper.training import Budget, train

_DIGITS = (1, 4, 5, 7, 9)
_METHODS = ("vae", "abp", "meg", "bigan-sigma", "lebm", "adaptive-ce", "damc")
_PRINTED = {
    "vae": (0.063, 0.337, 0.325, 0.148, 0.104),
    "abp": (0.095, 0.138, 0.147, 0.138, 0.102),
    "meg": (0.281, 0.401, 0.402, 0.290, 0.342),
    "bigan-sigma": (0.287, 0.443, 0.514, 0.347, 0.307),
    "lebm": (0.336, 0.630, 0.619, 0.463, 0.413),
    "adaptive-ce": (0.531, 0.729, 0.742, 0.620, 0.499),
    "damc": (0.684, 0.911, 0.939, 0.801, 0.705),
}
_CALIBRATED_ON = 2000
_SAMPLES = 4  # draws of an amortizer, averaged for the calibrated score, as the detector does
_BATCH = 500


class Anomaly(Table):
    """Area under the precision-recall curve for each held-out digit."""

    name: ClassVar[str] = "anomaly"
    about: ClassVar[str] = "a held-out digit of MNIST as the anomaly: AUPRC of every method"
    uses: ClassVar[frozenset[str]] = frozenset(
        {"scale", "methods", "digits", "minutes", "iterations"}
    )
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("auprc", "AUPRC, calibrated score", lower=False),
        Measure("auprc_own", "AUPRC, the method's own score", lower=False),
        Measure("auprc_authors", "AUPRC, the score of the paper's code", lower=False),
        Measure("auprc_reconstruction", "AUPRC, squared error alone", lower=False),
        Measure("average_precision", "average precision, calibrated score", lower=False),
        Measure("auroc", "AUROC, calibrated score", lower=False),
    )
    across: ClassVar[str] = "columns"
    paper: ClassVar[Mapping[tuple[str, str, str], float]] = {
        (method, str(digit), "auprc_own"): value
        for method, row in _PRINTED.items()
        for digit, value in zip(_DIGITS, row, strict=True)
    }
    note: ClassVar[str] = (
        "Chance level of AUPRC for the digits 1, 4, 5, 7, 9: .388 .351 .331 .368 .356; the lowest "
        "possible value: .226 .200 .188 .212 .204 (the paper's VAE and ABP figures for several "
        "digits are below it, so they come from another test set). The paper reports the best of "
        "many evaluations on the test set; these are results of the last iterate."
    )

    def cells(self, options: Options) -> list[Cell]:
        methods = options.methods or (*BASELINES, *_METHODS)
        for method in methods:
            if method not in BASELINES:
                find_method(method)
        digits = options.digits or _DIGITS
        if not set(digits) <= set(range(10)):
            raise BadInput(f"digits must be between 0 and 9, got {digits}")
        preset = find_preset("mnist" if options.scale == "paper" else "mnist-detect-small")
        iterations = options.iterations
        if iterations is None and options.minutes is None:
            iterations = preset.iterations
        plan = {"preset": preset.name, "iterations": iterations, "minutes": options.minutes}
        return [
            Cell(method, str(digit), seed, {} if method in BASELINES else plan)
            for seed in options.seeds
            for digit in digits
            for method in methods
        ]

    def work(self, cell: Cell, folder: Path, options: Options) -> dict[str, float]:
        everything = load_images("mnist", root=options.data_root, split="all")
        digit = int(cell.column)
        normal = heldout_split(everything, digit, train=True)
        test = heldout_split(everything, digit, train=False)
        last = len(normal) - _CALIBRATED_ON
        if cell.row in BASELINES:
            start = time.monotonic()
            sets = normal.subset(torch.arange(last)), normal.subset(torch.arange(last, len(normal)))
            scores = baseline_scores(cell.row, *sets, test, cell.seed)
            took = {"seconds": time.monotonic() - start}
            return {**took, **figures_of(detections(scores, anomalies_in(test, digit)))}
        learner, took = train(
            find_preset(cell.plan["preset"]),
            cell.row,
            normal.subset(torch.arange(last)),
            folder,
            Budget(cell.plan["iterations"], cell.plan["minutes"]),
            seed=cell.seed,
        )
        spare = normal.subset(torch.arange(last, len(normal)))
        scores = scores_of(learner, spare, test, cell.seed)
        return {**took, **figures_of(detections(scores, anomalies_in(test, digit)))}


def anomalies_in(test: Images, digit: int) -> Tensor:
    """Which of the test images are the held-out digit, ``(N,)``."""
    if test.labels is None:
        raise BadInput(f"{test.name} must have labels, got images alone")
    return test.labels == digit


def detections(scores: Mapping[str, Tensor], anomalous: Tensor) -> dict[str, Detection]:
    """How well each score detects the anomalies, both of the test images ``(N,)``."""
    return {kind: detection_scores(anomalous, values) for kind, values in scores.items()}


def figures_of(found: Mapping[str, Detection]) -> dict[str, float]:
    """The table's figures of every score that a learner has."""
    figures = {
        "auprc" if kind == "calibrated" else f"auprc_{kind}": detection.auprc
        for kind, detection in found.items()
    }
    if "calibrated" in found:
        figures["average_precision"] = found["calibrated"].average_precision
        figures["auroc"] = found["calibrated"].auroc
    first = next(iter(found.values()))  # these two depend on the test set alone
    return {**figures, "chance": first.chance, "lowest": first.lowest}


def scores_of(learner: Learner, normal: Images, test: Images, seed: int) -> dict[str, Tensor]:
    """Every score of the test images that the learner has, ``(N,)`` each.

    The calibrated one is fitted to `normal` images that were not trained on.
    """
    generator = torch.Generator(learner.device).manual_seed(seed)

    def over(images: Images, what: Callable[[Tensor], dict[str, Tensor]]) -> dict[str, Tensor]:
        parts = torch.split(torch.arange(len(images)), _BATCH)
        found = [what(images.batch(part).to(learner.device)) for part in parts]
        return {name: torch.cat([part[name] for part in found]).cpu() for name in found[0]}

    # Only an amortizer gives cheap random reconstructions; others are made once and reused.
    amortized = learner.amortized

    def errors(x: Tensor) -> dict[str, Tensor]:
        samples = _SAMPLES if amortized else 1
        e, c = error_and_detail(learner, x, samples=samples, generator=generator)
        return {"error": e, "detail": c}

    scores = over(test, lambda x: _uncalibrated(learner, x, generator))
    if "reconstruction" in scores:
        calibration = Calibration.of(**over(normal, errors))
        if amortized:
            scores["calibrated"] = calibration.score_errors(**over(test, errors))
        else:
            error = scores["misfit"].clamp_min(FLOOR * math.prod(test.shape))
            details = over(test, lambda x: {"detail": detail_of(x)})
            scores["calibrated"] = calibration.score_errors(error, **details)
    scores.pop("misfit", None)
    return scores


@torch.no_grad()
def _uncalibrated(learner: Learner, x: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Every score that needs no calibration, and the misfit, ``(B,)`` each.

    They come from one inference where the learner's own score is minus the log joint density.
    """
    found: dict[str, Tensor] = {}
    model = learner.model
    if model is not None and learner.score == "joint":
        z = learner.infer(x, generator=generator)
        y, prior = model.decoder(z), -model.prior.log_prob(z)
        error = (x - y).square().flatten(1).sum(1)
        found |= {"own": error / (2 * model.sigma**2) + prior, "authors": error + prior}
    else:
        if learner.score is not None:
            found["own"] = learner.anomaly_score(x, generator=generator)
        if model is not None:
            found["authors"] = score(learner, x, "authors", generator=generator)
        if learner.inference is None:
            return found
        y = learner.reconstruct(x, generator=generator)
        error = (x - y).square().flatten(1).sum(1)
    return {**found, "reconstruction": error, "misfit": misfit(x, y)}
