"""The progress bar of a training run."""

from __future__ import annotations

__all__ = ["health", "progress_bar"]

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from damc.learn import Learner

_SHORT = {
    "mse": "mse",
    "energy_difference": "dE",
    "displacement": "moved",
    "amortizer_loss": "q",
    "discriminator_loss": "D",
    "decoder_loss": "G",
    "r1": "R1",
    "real_logit": "real",
    "fake_logit": "fake",
}
"""Metrics that a bar shows, and their names there."""


@contextlib.contextmanager
def progress_bar(learner: Learner, iterations: int, show: bool) -> Iterator[Any]:
    """A bar in the terminal, or a widget in a notebook."""
    with warnings.catch_warnings():
        # A notebook without widgets gets the bar as text, which is no reason to warn.
        warnings.filterwarnings("ignore", message="IProgress not found")
        from tqdm.auto import tqdm

    with tqdm(
        total=iterations,
        initial=min(learner.iteration, iterations),
        desc=learner.name,
        disable=not show,
        dynamic_ncols=True,
    ) as bar:
        yield bar


def health(values: Mapping[str, float]) -> str:
    """The quantities that tell whether training is healthy, short enough for a bar."""
    return " ".join(f"{_SHORT[k]} {v:.3g}" for k, v in values.items() if k in _SHORT)
