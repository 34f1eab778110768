"""How a learner was trained, as a model card tells it: data, command, results."""

from __future__ import annotations

__all__ = ["command_of", "provenance_of"]

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from damc.errors import BadInput
from damc.learn import METHODS, Learner
from damc.learn.presets import PRESETS
from damc.train.run import Run

_RESULTS = ("results.json", "evaluate/results.json")
_KEPT = (
    "mse",
    "mse_standard_error",
    "psnr",
    "mean_image_mse",
    "images",
    "evaluated_on",
    "seconds",
)


def provenance_of(run: Run, learner: Learner) -> dict[str, Any]:
    """What a run folder knows of the training of its learner."""
    config = run.config
    return {
        "preset": config.get("preset"),
        "data": config.get("data") or {},
        "training": config.get("training") or {},
        "command": command_of(config, learner.iteration),
        "results": _results(run, learner.iteration),
    }


def command_of(config: Mapping[str, Any], iterations: int) -> str:
    """The command that trains such a run again, or the call of a run from Python.

    Args:
        config: the settings of a run folder.
        iterations: how many there were.
    """
    preset = PRESETS.get(str(config.get("preset")))
    method = METHODS.get(str(config.get("learner")))
    data, training = config.get("data") or {}, config.get("training") or {}
    if config.get("converted"):
        return f"damc convert {config['converted']} --preset {config.get('preset')}"
    if preset is None or method is None:
        return f"damc.fit(learner, {data.get('name')!r}, iterations={iterations})"
    words = ["damc", "train", preset.name, "--iterations", str(iterations)]
    words += ["--seed", str(training.get("seed", 0))]
    if method.name != "damc":
        words += ["--method", method.name]
    if data.get("name") != preset.data:
        words += ["--data", str(data.get("name"))]
    if data.get("heldout") is not None:
        words += ["--heldout", str(data["heldout"])]
    if data.get("resize"):
        words.append("--resize")
    if training.get("batch", preset.batch) != preset.batch:
        words += ["--batch", str(training["batch"])]
    changes = _changes(method, preset.name, (config.get("config") or {}).get("settings") or {})
    if changes.get("horizon") == iterations:
        del changes["horizon"]  # `damc train` sets it to the number of iterations
    if changes:
        words += ["--set", *(f"{name}={value}" for name, value in changes.items())]
    return shlex.join(words)


def _changes(method: type[Learner], preset: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that differ from those of the preset."""
    try:
        own = asdict(method.settings_from(PRESETS[preset].recipe))
    except (BadInput, TypeError):
        return {}
    return {name: v for name, v in settings.items() if name in own and own[name] != v}


def _results(run: Run, iteration: int) -> dict[str, Any]:
    """What the run's own commands measured at this iteration."""
    found: dict[str, Any] = {}
    for name in _RESULTS:
        try:
            results = json.loads((run.path / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(results, dict) and results.get("iteration") == iteration:
            found |= {key: results[key] for key in _KEPT if key in results}
            rows = results.get("table")  # of `damc evaluate`
            for row in rows if isinstance(rows, list) else ():
                found[f"{row['of']}: {row['measure']}"] = row["value"]
    return found
