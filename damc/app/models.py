"""The models that the page offers: run folders given to it, and those that come with damc."""

from __future__ import annotations

__all__ = ["Model", "Models", "packaged"]

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from damc.errors import BadInput
from damc.hub.packaged import packaged_folder, packaged_names
from damc.learn.learner import Learner

_FIRST = "mnist-small"  # a drawn digit is of its kind


def packaged() -> dict[str, Path]:
    """Folders of the models that come with damc, by name, the page's default first."""
    names = sorted(packaged_names(), key=lambda name: name != _FIRST)
    folders = {name: packaged_folder(name) for name in names}
    return {name: folder for name, folder in folders.items() if folder is not None}


class Model:
    """A trained model that browser tabs take turns at.

    Its networks keep buffers between calls, so only one thread uses it at a time.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner, self._lock = learner, threading.Lock()

    @contextmanager
    def use(self) -> Iterator[Learner]:
        """The learner, to this thread alone."""
        with self._lock:
            yield self._learner


class Models:
    """Trained models by name, each loaded when first asked for.

    Args:
        folders: run folders; those of `packaged` are added after them.
    """

    def __init__(self, folders: Sequence[str | Path] = ()) -> None:
        given: dict[str, Path] = {}
        for folder in map(Path, folders):
            name = folder.resolve().name
            given[str(folder) if name in given else name] = folder
        self.folders = given | {n: f for n, f in packaged().items() if n not in given}
        self._open: dict[str, Model] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """Of all of them, the first is the default."""
        return list(self.folders)

    def name_of(self, folder: str | Path) -> str:
        """What a run folder given to it is called."""
        return next(name for name, path in self.folders.items() if path == Path(folder))

    def open(self, name: str | None) -> Model:
        """The model of that name."""
        if not self.folders:
            raise BadInput("no model is open: start the page with one, as in damc app RUN")
        if name is None:
            raise BadInput(f"model must be one of {', '.join(self.folders)}, got none")
        if name not in self.folders:
            raise BadInput(f"model must be one of {', '.join(self.folders)}, got {name!r}")
        with self._lock:
            if name not in self._open:
                self._open[name] = Model(_load(self.folders[name]))
            return self._open[name]


def _load(folder: Path) -> Learner:
    import damc

    found = damc.load(folder)
    if not isinstance(found, Learner):
        raise BadInput(f"{folder} must be a run of a generative model, got a detector")
    return found
