"""Trained learners from run folders, from published models and from the Hub."""

from __future__ import annotations

__all__ = ["build", "find_folder", "load", "load_state"]

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from damc.disk import sensible
from damc.errors import BadInput
from damc.hub.client import download, is_repository
from damc.hub.packaged import packaged_folder, packaged_names
from damc.hub.published import is_published, read_model
from damc.learn import Learner, find_learner
from damc.report.history import TrainingHistory
from damc.train.provenance import provenance_of
from damc.train.run import Run

_TRAINED = ("preset", "data", "training", "command", "results")


def load(
    source: str | Path,
    device: torch.device | str | None = None,
    *,
    learner: Learner | None = None,
    revision: str | None = None,
    sha256: str | None = None,
) -> Learner:
    """A trained learner, on any device.

    Args:
        source: a run folder, whose newest weights are taken; a folder that `Learner.save` wrote;
            the name of a packaged model (`damc models` lists them); or "owner/name" on the Hub.
        device: where the weights go; the CPU by default.
        learner: for networks of your own, a learner with the same networks: it gets the weights
            and is returned.
        revision: of a repository of the Hub: a branch, tag or commit.
        sha256: of the weights of a published model, as its card gives it; others are refused.
    """
    folder = find_folder(source, revision=revision)
    if is_published(folder):
        learner = _published(folder, learner, sha256)
    else:
        if sha256 is not None:
            raise BadInput(f"sha256 must be of a published model, got {folder}, a run folder")
        learner = _trained(Run.open(folder), learner, device)
    if device is not None:
        learner.to(device)
    return learner.eval()


def find_folder(source: str | Path, *, revision: str | None = None) -> Path:
    """The folder of whatever `load` takes; a model of the Hub is downloaded."""
    path, name = Path(source), str(source)
    if path.is_dir() or isinstance(source, Path):
        return path
    packaged = packaged_folder(name)
    if packaged is not None:
        return packaged
    if is_repository(name) and not path.parent.is_dir():
        return download(name, revision=revision)
    if "/" in name or "\\" in name:
        return path  # whoever opens it says that it is not there
    raise BadInput(
        f"there is no folder {name}: source must be a run folder, a packaged model "
        f"({', '.join(packaged_names()) or 'none'}) or 'owner/name' on the Hub"
    )


def build(settings: Mapping[str, Any]) -> Learner:
    """The learner that a run folder's settings describe, with fresh weights."""
    name = str(settings.get("learner"))
    kind = find_learner(name)
    with sensible(f"the run's settings describe no {name} learner"):
        return kind.from_config(settings["config"])


def load_state(learner: Learner, weights: Mapping[str, Tensor], source: str | Path) -> None:
    """Fills a learner with all its weights; another model's raise `BadInput`."""
    try:
        learner.load_state_dict(weights)
    except RuntimeError as error:
        raise _others(source, error) from error


def _trained(run: Run, learner: Learner | None, device: torch.device | str | None) -> Learner:
    learner = build(run.config) if learner is None else _checked(learner, run.config)
    checkpoint = run.load(device=device)
    load_state(learner, checkpoint.weights, run.path)
    learner.iteration = checkpoint.iteration
    learner.history = TrainingHistory(run.metrics())
    learner.provenance = provenance_of(run, learner)
    return learner


def _published(folder: Path, learner: Learner | None, sha256: str | None) -> Learner:
    config, weights = read_model(folder, sha256=sha256)
    learner = build(config) if learner is None else _checked(learner, config)
    try:
        learner.load_published(weights)
    except RuntimeError as error:
        raise _others(folder, error) from error
    learner.iteration = int(config["iteration"])
    learner.provenance = {key: config[key] for key in _TRAINED if key in config}
    return learner


def _checked(learner: Learner, settings: Mapping[str, Any]) -> Learner:
    """The learner, if its method and its modules are those of a run's settings."""
    method = settings.get("learner")
    if learner.name != method:
        raise BadInput(f"learner must be of the method {method}, as the run is, got {learner.name}")
    known = (settings.get("config") or {}).get("modules") or {}
    own = learner.config.get("modules") or {}
    for name, module in known.items():
        if own.get(name) != module:
            raise BadInput(
                f"the {name} must be a {module}, as in the run, got {own.get(name, 'none')}"
            )
    return learner


def _others(source: str | Path, error: RuntimeError) -> BadInput:
    reason = str(error).splitlines()[-1].strip()
    return BadInput(f"the weights in {source} are another model's: {reason}")
