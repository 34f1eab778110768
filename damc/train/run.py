"""A run folder: settings, weights, resume state and metrics, safe against a crash.

```
RUN/config.json                                   the settings, and the format version
RUN/metrics.jsonl, RUN/metrics.seal               one JSON record a line, and their digest
RUN/checkpoints/00001234/weights.safetensors      the networks
RUN/checkpoints/00001234/resume.safetensors       the tensors of the resume state
RUN/checkpoints/00001234/resume.json              the rest of it, and the digests of both files
RUN/lock, RUN/lock.pid                            held while a process trains, and its number
```
Everything is written as `damc.disk` writes, so a process that is killed at any moment leaves a
folder that resumes. The JSON files are sealed: each holds its own digest, and `resume.json` those
of the tensors and the settings, so that nothing that was changed since is used unnoticed.
`torch.save` is not used because it pickles, and a run folder may come from somebody else.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from damc import disk
from damc.errors import BadInput
from damc.train import checkpoint, records
from damc.train.checkpoint import Checkpoint, Damaged

__all__ = ["FORMAT", "Checkpoint", "Run"]

FORMAT = 3
"""Version of the layout above; a folder of another version is refused, not guessed at."""


class Run:
    """A run folder `path` with its settings `config`, plain JSON values.

    Make one with `Run.create`, read one with `Run.open`, train under `lock()`.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any]) -> Run:
        """Make the folder, or open it if it already holds a run with these very settings."""
        path = Path(path)
        if {"format", "damc", "seal"} & {*config}:
            raise BadInput(
                "the settings 'format', 'damc' and 'seal' belong to the run folder itself"
            )
        try:
            plain = json.loads(json.dumps(dict(config), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise BadInput(f"the settings of a run are plain JSON values: {error}") from error
        with disk.on_disk("read", path):
            present = {item.name for item in path.iterdir()} if path.is_dir() else set()
        if "config.json" in present:
            run = cls.open(path)
            key = _difference(run.config, plain)
            if key is not None:
                raise BadInput(
                    f"{path} holds a run with other settings ({key} differs): "
                    "give another folder, or the settings it was made with"
                )
            return run
        if present & {"checkpoints", "metrics.jsonl"}:
            raise BadInput(f"{path} holds training output without a config.json: give a new folder")
        head = {"format": FORMAT, "damc": _version()}
        disk.write_atomically(path / "config.json", disk.seal(head | plain, indent=2))
        return cls(path, plain)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a folder that `create` made."""
        path = Path(path)
        file = path / "config.json"
        with disk.on_disk("read", file):
            if not path.is_dir():
                raise BadInput(f"there is no folder {path}: give a run folder")
            if not file.exists():
                raise BadInput(f"{path} is not a run folder: it has no config.json")
        text = disk.read(file)
        head = disk.parse(text, file)
        if "format" not in head:
            raise BadInput(f"{path} is not a damc run folder: its config.json names no format")
        if head["format"] != FORMAT:  # before the digest, which other formats may not have
            written_by = f"damc {head.get('damc', 'unknown')!s:.20}"
            raise BadInput(
                f"{path} has run format {head['format']!r:.20}, written by {written_by}, "
                f"but this is damc {_version()}, which reads format {FORMAT}"
            )
        config = disk.unseal(text, file)
        for key in ("format", "damc"):
            config.pop(key, None)
        for key in {"config", "data", "training"} & {*config}:
            if not isinstance(config[key], dict):
                raise BadInput(f"{file} must have settings under {key!r}, got {config[key]!r:.20}")
        return cls(path, config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for training, and clear away what a killed process left behind."""
        # The number is in a file beside it, since Windows lets nobody read a locked one.
        lock, holder = FileLock(self.path / "lock"), self.path / "lock.pid"
        with disk.on_disk("write in", self.path):
            # A link, or a pipe, which would block; FileLock itself would empty what it opens.
            disk.open_plain(self.path / "lock", "ab").close()
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise BadInput(
                    f"{self.path} is being trained by process {_first_line(holder)}"
                ) from None
        try:
            disk.write_atomically(holder, f"{os.getpid()}\n")
            with disk.on_disk("write in", self.path):
                self._clear_leftovers()
            yield
        finally:
            with suppress(OSError):  # a number that stays is overwritten by the next holder
                holder.unlink()
            lock.release()

    def save(
        self, iteration: int, weights: Mapping[str, Tensor], resume: Any, *, keep: int = 3
    ) -> Path:
        """Write a checkpoint, then remove all but the newest `keep`. Call it under `lock()`.

        The metrics so far reach the disk before it does.

        A full or unwritable disk raises `BadInput` and leaves the checkpoints that were there.

        Args:
            iteration: learning updates done so far.
            weights: the tensors of the networks, by name.
            resume: anything `pack` takes: optimizers, random states, counters.
            keep: how many checkpoints stay.
        """
        if iteration < 0 or keep < 1:
            raise BadInput(
                f"iteration and keep must be at least 0 and 1, got {iteration} and {keep}"
            )
        # Saving behind an intact checkpoint would hide the new one; behind a damaged one it is
        # the resume after `load` fell back, and the damaged one has to go.
        damaged = [later for later in self.checkpoints() if later > iteration]
        for later in damaged:
            if self._intact(later):
                raise BadInput(
                    f"{self.path} already holds iteration {later}, later than {iteration}: "
                    "load it before training on, or give a new folder"
                )
        blobs = checkpoint.contents(iteration, weights, resume, settings=self._settings())
        records.sync(self._metrics)
        root = self.path / "checkpoints"
        target = root / f"{iteration:08d}"
        replaced = target.with_suffix(".old")
        temporary = disk.temporary_beside(target)
        with disk.on_disk("write in", self.path):
            root.mkdir(exist_ok=True)
            disk.sync_folder(self.path)
            try:
                temporary.mkdir()
                for name, blob in blobs.items():
                    disk.write_synced(temporary / name, blob)
                disk.sync_folder(temporary)
                if target.exists():
                    # A folder cannot be renamed onto a full one; `_folders` still finds the old
                    # one under this name if we are killed between the two renames.
                    if replaced.exists():
                        _discard(replaced)
                    target.rename(replaced)
                temporary.rename(target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            disk.sync_folder(root)
            records.remember(self._metrics, iteration)
            older = [earlier for earlier in self.checkpoints() if earlier < iteration]
            extra = older[: max(0, len(older) - keep + 1)] + damaged
            for folder in [self._folders()[number] for number in extra]:
                _discard(folder)
            if replaced.exists():
                _discard(replaced)
        return target

    def checkpoints(self) -> list[int]:
        """Iterations of the checkpoints, oldest first; `load` finds out which are intact."""
        return sorted(self._folders())

    def load(
        self, iteration: int | None = None, device: torch.device | str | None = None
    ) -> Checkpoint:
        """Read the newest checkpoint that is intact, or exactly the one asked for.

        Args:
            iteration: which one; without it, a damaged newest one is skipped with a warning.
            device: where the weights go. The resume state stays on the CPU, where random states
                belong and from where optimizers place their own tensors.
        """
        found = self.checkpoints()
        if iteration is not None:
            if iteration not in found:
                raise BadInput(f"{self.path} has no checkpoint {iteration}: it has {found}")
            found = [iteration]
        lost = records.remembered(self._metrics)
        if iteration is None and found and lost > found[-1]:
            warnings.warn(
                f"checkpoint {lost} of {self.path} is missing; the one before it is used",
                stacklevel=2,
            )
        for number in reversed(found):
            try:
                return self._read(number, device)
            except Damaged as error:
                sentence = f"checkpoint {number} of {self.path} is damaged: {error}"
                if iteration is not None:
                    raise BadInput(sentence) from error
            warnings.warn(f"{sentence}; the one before it is used", stacklevel=2)
        what = "only damaged checkpoints" if found else "no checkpoint yet"
        raise BadInput(f"there is nothing to load: {self.path} has {what}")

    def begun(self) -> bool:
        """Whether there is something to go on with; `BadInput` if there was, and is lost."""
        lost = records.remembered(self._metrics)
        if not self.checkpoints() and lost:
            raise BadInput(f"{self.path} must have its checkpoint {lost}, which is missing")
        return bool(self.checkpoints())

    def log(self, record: Mapping[str, float | int | str]) -> None:
        """Append a line to `metrics.jsonl`. JSON has no infinities: they become null."""
        records.append(self._metrics, record)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, without the last line if a crash tore it.

        Warns if they are not those that the last checkpoint met.
        """
        found = records.read(self._metrics)
        if found and self.checkpoints() and not self._metrics.with_suffix(".seal").exists():
            warnings.warn(f"{self._metrics} has lost the digest beside it", stacklevel=2)
        return found

    def truncate_metrics(self, iteration: int) -> None:
        """Forget what was logged after `iteration`: a resumed run logs it again."""
        records.cut(self._metrics, iteration)

    def write(self, name: str, data: bytes | str) -> Path:
        """Write any other file of the run, such as `"samples/00001000.png"`, atomically."""
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise BadInput(f"{name!r} leads out of the run folder {self.path}")
        return disk.write_atomically(path, data)

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def _settings(self) -> str:
        """The digest of the settings, which ties a checkpoint to its run."""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    def _folders(self) -> dict[int, Path]:
        """Checkpoints; a replaced one (`.old`) counts while its successor is missing."""
        found: dict[int, Path] = {}
        for folder in sorted((self.path / "checkpoints").glob("[0-9]*"), reverse=True):
            name = re.fullmatch(r"(\d{8,})(\.old)?", folder.name)
            if name:
                found[int(name[1])] = folder  # "00000001" comes after "00000001.old" and wins
        return found

    def _read(self, iteration: int, device: torch.device | str | None = None) -> Checkpoint:
        return checkpoint.read(self._folders()[iteration], iteration, self._settings(), device)

    def _intact(self, iteration: int) -> bool:
        try:
            self._read(iteration)
        except Damaged:
            return False
        return True

    def _clear_leftovers(self) -> None:
        for leftover in [*self.path.rglob(f"{disk.TEMPORARY}*")]:
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
        for old in [*(self.path / "checkpoints").glob("*.old")]:
            if old.with_suffix("").exists():
                _discard(old)
            else:
                old.rename(old.with_suffix(""))


def _discard(folder: Path) -> None:
    """Remove a checkpoint in one rename, so that it is never seen half removed."""
    trash = disk.temporary_beside(folder)
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)  # what stays is cleared at the next `lock`


def _first_line(path: Path) -> str:
    try:
        return disk.read(path, 20).decode(errors="replace").strip() or "unknown"
    except BadInput:
        return "unknown"


def _difference(a: Any, b: Any) -> str | None:
    """The first key, dotted, at which two JSON values differ."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        return None if a == b else ""
    for key in a | b:
        inner = _difference(a[key], b[key]) if key in a and key in b else ""
        if inner is not None:
            return f"{key}.{inner}" if inner else str(key)
    return None


def _version() -> str:
    try:
        return importlib.metadata.version("damc")
    except importlib.metadata.PackageNotFoundError:
        return "from source"
