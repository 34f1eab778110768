"""The anomaly detector: learn normal data, score anything by the model's log joint.

`AnomalyDetector` stands beside the detectors of scikit-learn and PyOD and is used like them. This
is the one module of damc that imports scikit-learn as it loads; `damc.AnomalyDetector` loads it
when first used.
"""

from __future__ import annotations

__all__ = ["AnomalyDetector"]

import json
import math
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from damc.anomaly.files import FORMAT, MEMORY, recall_detector, unseen_images
from damc.anomaly.scaling import (
    Columns,
    Pixels,
    Scaling,
    kind_of,
    layout,
    scaling_from,
    settings_of,
)
from damc.anomaly.scores import SCORES, Calibration, score
from damc.anomaly.sizing import preset_for_images, preset_for_vectors
from damc.data import Images
from damc.data.sources import ArrayStore
from damc.errors import BadInput, Diverged
from damc.learn import LEARNERS, Learner
from damc.learn.presets import Preset, find_preset
from damc.noise import SharedNoise
from damc.train.run import Run

Array = NDArray[Any]
Scores = NDArray[np.float32]

_CALIBRATED_ON = 20  # held-out images from which on "auto" calibrates the score


class AnomalyDetector(BaseEstimator):  # type: ignore[misc]
    """A detector of anomalies, trained on normal data.

    Data are images ``(n, h, w)`` or ``(n, c, h, w)``, of any range that is kept from `fit` to
    `predict`; plain vectors ``(n, d)``, whose columns are standardized; or `damc.data.Images`.

    The signs are PyOD's: `decision_function` is higher for the more anomalous, `predict` gives 1
    for an anomaly and 0 else, `predict_proba` has the columns (normal, anomalous), and
    `decision_scores_` and `labels_` are those of the data given to `fit`. Parameters, cloning,
    pipelines and `score_samples` (higher for the more normal) are scikit-learn's.

    Args:
        preset: name of a set-up (`damc presets`); None sizes networks by the data's shape.
        method: how to learn, a name in `damc.learn.LEARNERS`.
        iterations: learning updates; None is the preset's number.
        batch: rows or images of an update; None is the preset's number.
        quantile: share of normal data below the threshold.
        held_out: share of the data that is not learned from; its scores give the threshold.
        score_kind: which score, a name in `damc.anomaly.scores.SCORES`: "calibrated" is fitted to
            the held-out data; "joint" is -log p~(z, x), averaged over posterior samples z;
            "authors" that of the paper's code. "auto" is "calibrated" for images, as it finds
            anomalies with little and with much detail alike, and "joint" for vectors or few images.
        samples: K, posterior samples averaged for a score.
        random_state: as in scikit-learn: None, a number or a NumPy generator.
        settings: changes to the method's settings, by name.
        device: "auto", "cpu" or "gpu".
        verbose: show progress bars.

    Attributes:
        learner_: the trained learner.
        threshold_: scores above it are anomalies: the `quantile` of the held-out scores.
        normal_scores_: the held-out scores, ``(m,)``.
        decision_scores_: scores of all data given to `fit`, ``(n,)``.
        labels_: 1 where those exceed the threshold, ``(n,)``.
        n_features_in_: numbers in a row or an image.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(60, 4))
        >>> detector = AnomalyDetector(iterations=5, random_state=0).fit(rows)
        >>> detector.predict([[0, 0, 0, 0], [99, 0, 0, 0]])
        array([0, 1])
    """

    def __init__(
        self,
        preset: str | None = None,
        *,
        method: str = "damc",
        iterations: int | None = None,
        batch: int | None = None,
        quantile: float = 0.95,
        held_out: float = 0.2,
        score_kind: str = "auto",
        samples: int = 4,
        random_state: Any = None,
        settings: dict[str, Any] | None = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.preset = preset
        self.method = method
        self.iterations = iterations
        self.batch = batch
        self.quantile = quantile
        self.held_out = held_out
        self.score_kind = score_kind
        self.samples = samples
        self.random_state = random_state
        self.settings = settings
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> AnomalyDetector:
        """Learns normal data; `y` is ignored, as every row counts as normal."""
        from damc.train.loop import fit

        self._check_parameters()
        data = self._read(X, reset=True)
        n = len(data)
        if n < 2:
            raise BadInput(f"n_samples = {n}, but learning and the threshold need one each")
        random = check_random_state(self.random_state)
        order = random.permutation(n)
        cut = min(n - 1, max(1, round(self.held_out * n)))
        held, train = order[:cut], order[cut:]
        self.seed_ = int(random.randint(2**31 - 1))
        scaling: Scaling = _measure(data, train)
        self.scaling_ = scaling
        preset = self._preset(scaling)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed_)
            learner = preset.learner(self.method, **(self.settings or {}))
        needs_model = self.score_kind in ("joint", "authors")
        if needs_model and learner.model is None:
            raise BadInput(f"{self.method} has no latent model: give score_kind='own'")
        rows = data.subset(train) if isinstance(data, Images) else _images(scaling, data[train])
        fit(
            learner,
            rows,
            iterations=preset.iterations,
            batch=preset.batch,
            seed=self.seed_,
            flip=preset.flip,
            accelerator=self.device,
            progress=self.verbose,
        )
        self.learner_: Learner = learner.eval()
        used = self._calibrate(data.subset(held) if isinstance(data, Images) else data[held])
        scores = self._scores(data)
        self._set_threshold(scores[held[used:]])
        return self._judge_own(scores)

    def decision_function(self, X: Any) -> Scores:
        """Anomaly scores ``(n,)``, float32: higher is more anomalous (PyOD's sign)."""
        check_is_fitted(self)
        return self._scores(self._read(X, reset=False))

    def score_samples(self, X: Any) -> Scores:
        """Minus `decision_function`: higher is more normal (scikit-learn's sign)."""
        return -self.decision_function(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 for an anomaly, 0 else, ``(n,)`` (PyOD's labels)."""
        return (self.decision_function(X) > self.threshold_).astype(np.int64)

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fits, and gives the labels of the same data."""
        return self.fit(X).labels_

    def predict_proba(self, X: Any, method: str = "linear") -> Scores:
        """Probabilities of (normal, anomalous), ``(n, 2)``, made from scores as PyOD makes them.

        Args:
            X: data.
            method: "linear", the place of a score between the least and the largest of
                `decision_scores_`; "unify", the Gaussian tail beyond their mean (Kriegel et al.
                2011). Neither is calibrated, and 0.5 is not the threshold.
        """
        return self.probabilities(self.decision_function(X), method)

    def probabilities(self, scores: Scores, method: str = "linear") -> Scores:
        """`predict_proba` of scores that are known already, ``(n, 2)``."""
        own = self.decision_scores_
        if method == "linear":
            place = (scores - own.min()) / (float(np.ptp(own)) or 1.0)
        elif method == "unify":
            spread = (float(own.std()) or 1.0) * math.sqrt(2)
            place = torch.erf(torch.from_numpy((scores - own.mean()) / spread)).numpy()
        else:
            raise BadInput(f"method is 'linear' or 'unify', got {method!r}")
        anomalous = np.clip(place, 0, 1)
        return np.stack([1 - anomalous, anomalous], axis=1)

    def reconstruct(self, X: Any) -> Tensor:
        """Data as the model sees them, in the model's own scale, ``(n, C, H, W)``."""
        check_is_fitted(self)
        parts = []
        for x in self._chunks(self._read(X, reset=False)):
            parts.append(self.learner_.reconstruct(x, generator=self._noise()).detach().cpu())
        return torch.cat(parts)

    def save(self, folder: str | Path) -> Path:
        """Writes a run folder that `from_run`, `damc.load` and `damc detect` read."""
        check_is_fitted(self)
        learner = self.learner_
        run = Run.create(
            folder,
            {
                "learner": learner.name,
                "preset": self.preset,
                "config": learner.config,
                "data": {"name": "given to AnomalyDetector.fit"},
                "training": {"seed": self.seed_},
            },
        )
        with run.lock():
            run.save(learner.iteration, learner.state_dict(), learner.resume_state(), keep=1)
            # The random state is used up by `fit`, and may be no plain value.
            parameters = {**self.get_params(), "random_state": self.seed_}
            memory = {
                "format": FORMAT,
                "parameters": parameters,
                "scaling": settings_of(self.scaling_),
                "seed": self.seed_,
                "calibration": None if self.calibration_ is None else astuple(self.calibration_),
                "normal_scores": self.normal_scores_.tolist(),
                "decision_scores": self.decision_scores_.tolist(),
            }
            run.write(MEMORY, json.dumps(memory) + "\n")
        return run.path

    @classmethod
    def from_run(
        cls,
        folder: str | Path,
        normal: Any = None,
        *,
        data_root: Path | None = None,
        limit: int = 1000,
        place: torch.device | str | None = None,
        **parameters: Any,
    ) -> AnomalyDetector:
        """The fitted detector of a run folder: one that `save` wrote, or any trained run.

        Args:
            folder: the run folder.
            normal: held-out normal images for the threshold; if not given, the run's own test
                images of the classes that it learned.
            data_root: folder of the named data sets, instead of the one that the run remembers.
            limit: take at most so many of the run's test images.
            place: the device to score on.
            parameters: of the detector: quantile, score_kind, samples, verbose.
        """
        from damc.train.loop import load

        run = Run.open(folder)
        memory = recall_detector(run, {*cls().get_params()})
        learner = load(folder, place)
        if memory is not None:
            detector = cls(**{**memory["parameters"], **parameters})
            detector.scaling_ = scaling_from(memory["scaling"])
            detector.seed_ = memory["seed"]
        else:
            detector = cls(
                **{"preset": run.config.get("preset"), "method": learner.name, **parameters}
            )
            c, h, w = run.config["config"]["networks"]["shape"]
            detector.scaling_, detector.seed_ = Pixels((c, h, w), None, None), 0
        detector._check_parameters()
        detector.learner_ = learner
        detector.n_features_in_ = math.prod(detector.scaling_.shape)
        detector.calibration_ = None
        score_of = ("score_kind", "samples")  # with others, the saved scores do not hold
        if (
            normal is None
            and memory is not None
            and all(getattr(detector, name) == memory["parameters"][name] for name in score_of)
        ):
            if memory["calibration"] is not None:
                detector.calibration_ = Calibration(*memory["calibration"])
            detector._set_threshold(np.array(memory["normal_scores"], np.float32))
            return detector._judge_own(np.array(memory["decision_scores"], np.float32))
        if normal is None:
            normal = unseen_images(run, data_root, limit)
        held = detector._read(normal, reset=False)
        used = detector._calibrate(held)
        detector._set_threshold(detector._scores(held)[used:])
        return detector._judge_own(detector.normal_scores_)

    def _score(self, x: Tensor) -> Tensor:
        """The score of model-scale data ``(B, C, H, W)``, ``(B,)``: the one place that does it."""
        options: dict[str, Any] = {"samples": self.samples, "generator": self._noise()}
        if self.calibration_ is not None:
            return self.calibration_.score(self.learner_, x, **options)
        return score(self.learner_, x, self._kind, **options)

    def _noise(self) -> SharedNoise:
        """The same noise for every row and every call: a score depends on its own row alone."""
        generator = SharedNoise(self.learner_.device)
        generator.manual_seed(self.seed_)
        return generator

    @property
    def _kind(self) -> str:
        """The score, where "auto" depends on what `_calibrate` met."""
        if self.score_kind != "auto":
            return self.score_kind
        if self.calibration_ is not None:
            return "calibrated"
        return "own" if self.learner_.model is None else "joint"

    def _calibrate(self, normal: Array | Images) -> int:
        """Fits the calibrated score to the first half of held-out data; the others need nothing.

        Returns:
            How many rows it used up: the threshold takes those that it has not seen.
        """
        self.calibration_: Calibration | None = None
        enough = len(normal) >= _CALIBRATED_ON and not self._of_vectors
        worthwhile = self.learner_.inference is not None and enough
        if self.score_kind != "calibrated" and (self.score_kind != "auto" or not worthwhile):
            return 0
        half = len(normal) // 2
        part = normal.subset(slice(half)) if isinstance(normal, Images) else normal[:half]
        x = torch.cat(list(self._chunks(part)))
        self.calibration_ = Calibration.fit(
            self.learner_, x, samples=self.samples, generator=self._noise()
        )
        return half

    def _scores(self, data: Array | Images) -> Scores:
        scores = torch.cat([self._score(x).float().cpu() for x in self._chunks(data)])
        if not bool(torch.isfinite(scores).all()):
            raise Diverged("anomaly scores are not finite: learn with smaller step sizes or rates")
        return scores.numpy()

    def _set_threshold(self, normal: Scores) -> None:
        self.normal_scores_ = normal
        # "higher": at least that share of the held-out scores is not above it, few as they may be.
        # And a hair more: rounding, which differs with the batch, must not tip that very row.
        edge = float(np.quantile(normal, self.quantile, method="higher"))
        self.threshold_ = edge + 1e-5 * abs(edge)

    def _judge_own(self, scores: Scores) -> AnomalyDetector:
        self.decision_scores_ = scores
        self.labels_ = (scores > self.threshold_).astype(np.int64)
        return self

    def _chunks(self, data: Array | Images, size: int = 256) -> Iterator[Tensor]:
        """Model-scale data, some at a time, on the learner's device."""
        from tqdm import tqdm

        device = self.learner_.device
        scaling = self.scaling_
        if isinstance(scaling, Pixels) and not isinstance(data, Images):
            scaling = scaling.settled(data)  # by all of them: a part may lack the darkest pixels
        starts = range(0, len(data), size)
        for start in tqdm(starts, desc="score", disable=not self.verbose, dynamic_ncols=True):
            if isinstance(data, Images):
                x = data.batch(torch.arange(start, min(start + size, len(data))))
            else:
                x = torch.from_numpy(scaling(data[start : start + size]))
            yield x.to(device)

    def _read(self, X: Any, *, reset: bool) -> Array | Images:
        """Data as vectors ``(n, d)`` or images ``(n, C, H, W)``, checked; `reset` in `fit`."""
        if isinstance(X, Images):
            data: Array | Images = X
            shape: tuple[int, ...] = X.shape
        else:
            if isinstance(X, Tensor):
                X = X.detach().cpu().numpy()
            ndim = X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim
            data = layout(np.asarray(X)) if ndim in (3, 4) else self._vectors(X, reset)
            shape = data.shape[1:]
            if data.dtype.kind == "f" and not np.isfinite(data).all():
                raise BadInput("X contains NaN or inf, and finite numbers are wanted")
        if reset:
            self.n_features_in_ = math.prod(shape)
            return data
        wanted = (self.n_features_in_,) if self._of_vectors else self.scaling_.shape
        if shape != wanted:
            raise BadInput(
                f"X holds {kind_of(shape)}, but this detector was fitted to {kind_of(wanted)}"
            )
        return data

    def _vectors(self, X: Any, reset: bool) -> Array:
        if not reset and not self._of_vectors:
            wanted = kind_of(self.scaling_.shape)
            raise BadInput(f"X has shape {np.shape(X)}, but this detector was fitted to {wanted}")
        rows: Array = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
        return rows

    @property
    def _of_vectors(self) -> bool:
        return isinstance(self.scaling_, Columns)

    def _preset(self, scaling: Scaling) -> Preset:
        """The set-up to learn with, its lengths as asked for."""
        if isinstance(scaling, Columns):
            if self.preset is not None:
                raise BadInput(f"the preset {self.preset!r} is for images, and X holds vectors")
            preset = preset_for_vectors(scaling.shape[2])
        elif self.preset is None:
            preset = preset_for_images(scaling.shape)
        else:
            preset = find_preset(self.preset)
            if preset.networks.shape != scaling.shape:
                raise BadInput(
                    f"the preset {self.preset!r} wants {kind_of(preset.networks.shape)}, "
                    f"and X holds {kind_of(scaling.shape)}"
                )
        iterations = self.iterations or preset.iterations
        settings = replace(preset.settings, horizon=iterations)
        batch = self.batch or preset.batch
        return replace(preset, settings=settings, iterations=iterations, batch=batch)

    def _check_parameters(self) -> None:
        if not 0 < self.quantile < 1 or not 0 < self.held_out < 1:
            raise BadInput(
                "quantile and held_out lie between 0 and 1, "
                f"got {self.quantile} and {self.held_out}"
            )
        for name in ("iterations", "batch", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")
        if self.score_kind not in ("auto", *SCORES):
            names = ", ".join(("auto", *SCORES))
            raise BadInput(f"score_kind is one of {names}, got {self.score_kind!r}")
        if self.method not in LEARNERS:
            raise BadInput(f"no method is called {self.method!r}: there are {', '.join(LEARNERS)}")


def _measure(data: Array | Images, train: Array) -> Scaling:
    if isinstance(data, Images):
        return Pixels(data.shape, None, None)
    return Columns.measure(data[train]) if data.ndim == 2 else Pixels.measure(data[train])


def _images(scaling: Scaling, data: Array) -> Images:
    """Data as what `damc.fit` takes; vectors stay unbounded."""
    return Images(ArrayStore(scaling(data), -1.0), name="X")
