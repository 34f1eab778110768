"""Learners with networks of your own, named on the command line as PACKAGE.MODULE:FACTORY."""

from __future__ import annotations

__all__ = ["learner_from"]

import importlib
import sys
from pathlib import Path

from damc.errors import BadInput
from damc.learn import Learner
from damc.randomness import global_seed


def learner_from(place: str, *, seed: int = 0) -> Learner:
    """What a factory makes; the module is looked for in the working folder, too.

    Args:
        place: "package.module:factory"; the factory takes no arguments and returns a
            `damc.Learner`.
        seed: of the initial weights.
    """
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise BadInput(f"module must be PACKAGE.MODULE:FACTORY, got {place!r}")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(
            f"module must be one that can be imported, got {place!r}: {error}"
        ) from error
    finally:
        sys.path.remove(here)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise BadInput(f"module must name a function of {module_name}, got {name!r}")
    with global_seed(seed):
        learner = factory()
    if not isinstance(learner, Learner):
        raise BadInput(
            f"{place} must return a damc.Learner, got {type(learner).__name__}: "
            "damc.DAMC(model, amortizer) is one"
        )
    return learner
