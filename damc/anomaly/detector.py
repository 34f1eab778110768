"""The anomaly detector: learn normal data, score anything by how far it departs from them.

`AnomalyDetector` stands beside the detectors of scikit-learn and PyOD and is used like them. This
is the one module of damc that imports scikit-learn as it loads; `damc.AnomalyDetector` loads it
when first used.
"""

from __future__ import annotations

__all__ = ["AnomalyDetector"]

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from damc.anomaly.explain import explain_vectors, in_shape_of
from damc.anomaly.fitting import (
    Fitted,
    batch_scores,
    fit_parts,
    fit_with_network,
    part_scores,
)
from damc.anomaly.parameters import check_parameters, plan_of, quality_of
from damc.anomaly.parts import CHEAP, NetworkScore, PartsPlan
from damc.anomaly.probabilities import confidence, probabilities
from damc.anomaly.reading import Data, batches, check_finite, read_images
from damc.anomaly.scaling import Columns, kind_of
from damc.anomaly.threshold import Threshold
from damc.errors import BadInput
from damc.learn import Learner

Scores = NDArray[np.float32]

_FEW = 20  # rows below which a threshold says little


class AnomalyDetector(BaseEstimator):  # type: ignore[misc]
    """A detector of anomalies, fitted to normal data.

    Data are images ``(n, h, w)``, ``(n, c, h, w)`` or ``(n, h, w, c)``, of any range that is kept
    from `fit` to `predict`; a folder of images of one size; `damc.data.Images`, as
    `load_images(FOLDER, size=128)` makes them of any sizes; or plain vectors ``(n, d)``, whose
    columns are standardized.

    The signs are PyOD's: `decision_function` is higher for the more anomalous, `predict` gives 1
    for an anomaly and 0 else, `predict_proba` has the columns (normal, anomalous), and
    `decision_scores_` and `labels_` are those of the data given to `fit`. Parameters, cloning,
    pipelines and `score_samples` (higher for the more normal) are scikit-learn's. There is no
    `partial_fit`: the threshold holds for rows exchangeable with those of one `fit`, and a stream
    need not be; fit again on the rows that are to count as normal.

    Args:
        preset: of the network, by name (`damc presets`); None sizes it by the data.
        quality: "fast" takes seconds and no network: distances to normal rows, or to the pixels
            and edges of normal images. "balanced" and "best" add the misfit of a network that
            learns for about 3 and 20 minutes on 28x28 images. None is "fast", or "balanced" where
            `preset`, `iterations`, `batch`, `settings` or a score of a network is given.
        quantile: share of fresh normal data below the threshold.
        contamination: share of anomalies among the data given to `fit`, which are then left out
            as far as they can be told; None takes all of them for normal.
        augment: take images that differ from normal ones by a small turn (9 degrees) or scale (8 %)
            for normal, too. Switch it off where such differences matter.
        features: a network of yours, from images ``(B, C, H, W)`` in [-1, 1] to maps
            ``(B, F, h, w)``, for the part "patches" (`damc.anomaly.places.Patches`).
        tile: compare tiles of this many pixels a side, a multiple of 8, which overlap by half, with
            those of normal images wherever they lie, instead of whole images; for textures and
            large images without a fixed place for things. None compares whole images, larger ones
            averaged down.
        score_kind: "auto" combines all parts of the detector; or one by name: "pixels",
            "gradients", "spectrum" (in color), "surprise", "tiles" or "patches" for images,
            "neighbors" for vectors, and those of a network, see `damc.anomaly.scores.SCORES`.
        method: how the network learns, a name in `damc.learn.LEARNERS`.
        iterations: learning updates; None follows from preset and quality.
        batch: rows or images of an update; None is the preset's number.
        settings: changes to the method's settings, by name.
        held_out: share of the data that a network does not learn from; their scores calibrate
            the parts, and give the threshold.
        samples: K, posterior samples averaged for a score of a network.
        random_state: as in scikit-learn: None, a number or a NumPy generator.
        device: of the network, "auto", "cpu" or "gpu".
        verbose: show progress bars.

    Attributes:
        parts_: the fitted parts, each with a name and `score`.
        learner_: the trained learner, or None.
        threshold_: scores above it are anomalies.
        false_alarms_: bounds of the share of normal data above it, at 90 %.
        normal_scores_: scores of the normal rows that the threshold was taken from, ``(m,)``, each
            by parts that were fitted to and calibrated on others.
        decision_scores_: scores of all data given to `fit`, ``(n,)``, each by parts fitted without
            it, but for what a network learned from.
        labels_: 1 where those exceed the threshold, ``(n,)``.
        n_features_in_: numbers in a row or an image.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(60, 4))
        >>> detector = AnomalyDetector(random_state=0).fit(rows)
        >>> detector.predict([[0, 0, 0, 0], [99, 0, 0, 0]])
        array([0, 1])
    """

    def __init__(
        self,
        preset: str | None = None,
        *,
        quality: str | None = None,
        quantile: float = 0.95,
        contamination: float | None = None,
        augment: bool = True,
        features: Callable[[Tensor], Any] | None = None,
        tile: int | None = None,
        score_kind: str = "auto",
        method: str = "damc",
        iterations: int | None = None,
        batch: int | None = None,
        settings: dict[str, Any] | None = None,
        held_out: float = 0.2,
        samples: int = 2,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.preset = preset
        self.quality = quality
        self.quantile = quantile
        self.contamination = contamination
        self.augment = augment
        self.features = features
        self.tile = tile
        self.score_kind = score_kind
        self.method = method
        self.iterations = iterations
        self.batch = batch
        self.settings = settings
        self.held_out = held_out
        self.samples = samples
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> AnomalyDetector:
        """Learns normal data; `y` is ignored."""
        check_parameters(self)
        data = self._read(X, reset=True)
        if getattr(X, "dtype", None) == np.uint8 and X.shape == (len(X), len(X)):
            warnings.warn(
                f"X is taken for {len(X)} rows of a table; if it is an image, several are needed, "
                "of shape (n, h, w)",
                stacklevel=2,
            )
        if len(data) < 3:
            raise BadInput(f"n_samples = {len(data)}, but at least 3 are needed")
        if len(data) < _FEW:
            warnings.warn(
                f"X holds {len(data)} rows: the threshold of so few may be far off", stacklevel=2
            )
        random = check_random_state(self.random_state)
        order = random.permutation(len(data))
        self.seed_ = int(random.randint(2**31 - 1))
        plan = PartsPlan(self.score_kind, self.augment, self.features, self.tile)
        if quality_of(self) == "fast" or self.score_kind in CHEAP:
            fitted = fit_parts(data, order, plan, self.contamination)
        else:
            fitted = fit_with_network(
                data,
                order,
                plan_of(self),
                plan,
                contamination=self.contamination,
                held_out=self.held_out,
                samples=self.samples,
                seed=self.seed_,
            )
        return self._take(fitted)

    def decision_function(self, X: Any) -> Scores:
        """Anomaly scores ``(n,)``, float32: higher is more anomalous (PyOD's sign)."""
        check_is_fitted(self)
        return self._scores(self._read(X, reset=False))

    def score_samples(self, X: Any) -> Scores:
        """Minus `decision_function`: higher is more normal (scikit-learn's sign)."""
        return -self.decision_function(X)

    def part_scores(self, X: Any) -> dict[str, Scores]:
        """The scores of every part by name, ``(n,)`` each, in units of their spread on normal
        data."""
        check_is_fitted(self)
        raw = part_scores(self.parts_, self._read(X, reset=False), self.scaling_)
        standard = self.fitted_.combination.standard(raw[:, :-1])
        return {
            part.name: column.float().numpy()
            for part, column in zip(self.parts_, standard.T, strict=True)
        }

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 for an anomaly, 0 else, ``(n,)`` (PyOD's labels)."""
        return (self.decision_function(X) > self.threshold_).astype(np.int64)

    def p_values(self, X: Any) -> NDArray[np.float64]:
        """How often normal data score as high as each row, ``(n,)``: valid for one row, whatever
        the distribution of the data; among many rows some are small by chance."""
        return self._threshold.p_values(self.decision_function(X))

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fits, and gives the labels of the same data."""
        return self.fit(X).labels_

    def predict_proba(self, X: Any, method: str = "linear") -> Scores:
        """Probabilities of (normal, anomalous), ``(n, 2)``, made from scores as PyOD makes them.

        Neither way is calibrated, and 0.5 is not the threshold; see `p_values`.

        Args:
            X: data.
            method: "linear" or "unify", see `damc.anomaly.probabilities`.
        """
        return self.probabilities(self.decision_function(X), method)

    def probabilities(self, scores: Scores, method: str = "linear") -> Scores:
        """`predict_proba` of scores that are known already, ``(n, 2)``."""
        return probabilities(scores, self.decision_scores_, method)

    def predict_confidence(self, X: Any) -> NDArray[np.float64]:
        """How likely each label of `predict` stays the same under small changes of the training
        data, ``(n,)`` (PyOD's)."""
        scores = self.decision_function(X)
        labels = (scores > self.threshold_).astype(np.int64)
        share = float(self.labels_.mean()) if self.contamination is None else self.contamination
        return confidence(scores, self.decision_scores_, labels, share)

    def explain(self, X: Any) -> Scores:
        """Where data are anomalous, a map of the shape of X: higher is more anomalous.

        For images, how badly its surroundings predict a pixel (`damc.anomaly.surprise`), or
        how far its `features` lie from normal ones; all its channels share the value. For vectors,
        how far each column lies from the nearest normal rows, in standard deviations.
        """
        check_is_fitted(self)
        data, found = self._read(X, reset=False), []
        for x in batches(data, self.scaling_):
            if self.fitted_.places is not None:
                found.append(self.fitted_.places.map(x))
            else:
                found.append(explain_vectors(self.parts_, x))
        return in_shape_of(torch.cat(found), data if isinstance(X, str | Path) else X)

    def reconstruct(self, X: Any) -> Tensor:
        """Data as the network sees them, in its own scale and size, ``(n, C, h, w)``."""
        from damc.randomness import SharedNoise

        check_is_fitted(self)
        if self.learner_ is None:
            raise BadInput("quality must be 'balanced' or 'best' to reconstruct, got 'fast'")
        found = []
        for x in batches(self._read(X, reset=False), self.scaling_):
            noise = SharedNoise(self.learner_.device)
            noise.manual_seed(self.seed_)
            seen = NetworkScore(self.learner_, "reconstruction").seen(x)
            y = self.learner_.reconstruct(seen, generator=noise)
            found.append(y.detach().cpu())
        return torch.cat(found)

    def save(self, folder: str | Path) -> Path:
        """Writes a folder that `damc.load`, `from_run` and `damc detect` read."""
        from damc.anomaly.files import save_detector

        check_is_fitted(self)
        return save_detector(self, folder)

    @classmethod
    def from_run(cls, folder: str | Path, normal: Any = None, **options: Any) -> AnomalyDetector:
        """The fitted detector of a folder: one that `save` wrote, or any trained run.

        Args:
            folder: the folder.
            normal: held-out normal images that calibrate it and give the threshold; if not given,
                what was saved, or the run's own test images of the classes that it learned.
            options: `data_root`, `limit` and `place` of `damc.anomaly.files.open_detector`, and
                parameters of the detector: quantile, score_kind, samples, verbose.
        """
        from damc.anomaly.files import open_detector

        return open_detector(cls, folder, normal, **options)

    def _take(self, fitted: Fitted) -> AnomalyDetector:
        """Becomes the detector that was fitted."""
        self.fitted_ = fitted
        self.scaling_, self.parts_ = fitted.scaling, fitted.parts
        self.learner_: Learner | None = fitted.learner
        self.normal_scores_: Scores = fitted.normal.float().numpy()
        self.threshold_ = self._threshold.value
        self.false_alarms_ = self._threshold.false_alarms()
        self.decision_scores_: Scores = fitted.combined(fitted.own)
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(np.int64)
        self.n_features_in_ = math.prod(self.scaling_.shape)
        return self

    @property
    def _threshold(self) -> Threshold:
        return Threshold(self.normal_scores_, self.quantile)

    def _scores(self, data: Data) -> Scores:
        found = np.empty(len(data), dtype=np.float32)  # there may be very many rows
        for rows, scores in batch_scores(self.parts_, data, self.scaling_):
            found[rows] = self.fitted_.combined(scores)
        return found

    def _read(self, X: Any, *, reset: bool) -> Data:
        """Data as vectors ``(n, d)`` or images ``(n, C, H, W)``, checked; `reset` in `fit`."""
        known = None if reset else self.scaling_.shape
        X = X.detach().cpu().numpy() if isinstance(X, Tensor) else X
        data = read_images(X, known)
        if data is None:
            if known is not None and not isinstance(self.scaling_, Columns):
                raise BadInput(
                    f"X has shape {np.shape(X)}, but this detector was fitted to {kind_of(known)}"
                )
            data = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
            check_finite(data)
        shape = tuple(data.shape if hasattr(data, "batch") else data.shape[1:])
        if reset:
            self.n_features_in_ = math.prod(shape)
            return data
        columns = isinstance(self.scaling_, Columns)
        taken = (self.n_features_in_,) if columns else self.scaling_.shape
        if shape != taken:
            raise BadInput(
                f"X holds {kind_of(shape)}, but this detector was fitted to {kind_of(taken)}"
            )
        return data
