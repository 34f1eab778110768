"""Small trained models that come with damc: `damc.load("mnist-small")`; `damc models` lists them.

Each is a folder of `models`, as `damc.hub.published` describes it, made by `damc package`.
"""

from __future__ import annotations

__all__ = ["MODELS", "packaged_folder", "packaged_names"]

from pathlib import Path

MODELS = Path(__file__).parent / "models"
"""The folder of the packaged models."""


def packaged_folder(name: str) -> Path | None:
    """The folder of a packaged model, or None if there is no such model."""
    return _folders().get(name)


def packaged_names() -> list[str]:
    """The names of all of them."""
    return sorted(_folders())


def _folders() -> dict[str, Path]:
    return {path.parent.name: path.parent for path in MODELS.glob("*/config.json")}
