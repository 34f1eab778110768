"""The parameters of a detector: what they say together, and which cannot be."""

from __future__ import annotations

__all__ = ["check_parameters", "plan_of", "quality_of"]

from numbers import Real
from typing import TYPE_CHECKING

from damc.anomaly.network import QUALITIES, NetworkPlan
from damc.anomaly.parts import CHEAP
from damc.anomaly.scores import SCORES
from damc.errors import BadInput

if TYPE_CHECKING:
    from damc.anomaly.detector import AnomalyDetector


def quality_of(detector: AnomalyDetector) -> str:
    """The quality that was asked for, by itself or by parameters of a network."""
    if detector.quality is not None:
        return detector.quality
    return "balanced" if _for_network(detector) else "fast"


def plan_of(detector: AnomalyDetector) -> NetworkPlan:
    """What the parameters say about the network."""
    return NetworkPlan(
        quality_of(detector),
        detector.preset,
        detector.method,
        detector.iterations,
        detector.batch,
        detector.settings,
        detector.device,
        detector.verbose,
    )


def check_parameters(detector: AnomalyDetector) -> None:
    """Refuses what cannot be, before any data are looked at."""
    if quality_of(detector) not in QUALITIES:
        raise BadInput(f"quality must be one of {', '.join(QUALITIES)}, got {detector.quality!r}")
    for name in ("quantile", "held_out"):
        value = getattr(detector, name)
        if not isinstance(value, Real) or not 0 < float(value) < 1:
            raise BadInput(f"{name} must lie between 0 and 1, got {value!r}")
    share = detector.contamination
    if share is not None and not (isinstance(share, Real) and 0 < share < 0.5):
        raise BadInput(f"contamination must be None or in (0, 0.5), got {share!r}")
    if detector.samples < 1:
        raise BadInput(f"samples must be at least 1, got {detector.samples}")
    kinds = ("auto", *CHEAP, *SCORES)
    if detector.score_kind not in kinds:
        raise BadInput(f"score_kind must be one of {', '.join(kinds)}, got {detector.score_kind!r}")
    if detector.score_kind == "patches" and detector.features is None:
        raise BadInput("features must be a network where score_kind is 'patches', got None")
    if detector.tile is not None and (detector.tile < 8 or detector.tile % 8):
        raise BadInput(f"tile must be None or a multiple of 8, got {detector.tile}")
    if detector.score_kind == "tiles" and detector.tile is None:
        raise BadInput("tile must be given where score_kind is 'tiles', got None")
    plan_of(detector).check()
    given = _for_network(detector)
    if quality_of(detector) == "fast" and given:
        raise BadInput(
            f"quality must be 'balanced' or 'best' where {given[0]} is given, "
            "got 'fast', which has no network"
        )


def _for_network(detector: AnomalyDetector) -> list[str]:
    """Parameters given that only a network has a use for."""
    names = ("preset", "iterations", "batch", "settings")
    given = [name for name in names if getattr(detector, name) is not None]
    return given + ["score_kind"] * (detector.score_kind in SCORES)
