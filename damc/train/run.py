"""A run folder: settings, weights, resume state and metrics, safe against a crash.

```
RUN/config.json                                   the settings, and the format version
RUN/metrics.jsonl                                 one JSON record a line
RUN/checkpoints/00001234/weights.safetensors      the networks
RUN/checkpoints/00001234/resume.safetensors       the tensors of the resume state
RUN/checkpoints/00001234/resume.json              the rest of it, and the digests of both files
RUN/lock, RUN/lock.pid                            held while a process trains, and its number
```
Everything is written as `damc.files` writes, so a process that is killed at any moment leaves a
folder that resumes. `torch.save` is not used because it pickles, and a run folder may come from
somebody else.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from damc import files
from damc.errors import BadInput
from damc.files import load_weights, pack, unpack

__all__ = ["FORMAT", "Checkpoint", "Run", "load_weights", "pack", "unpack"]

FORMAT = 2
"""Version of the layout above; a folder of another version is refused, not guessed at."""


class Checkpoint(NamedTuple):
    """What `Run.load` gives back."""

    iteration: int
    weights: dict[str, Tensor]
    resume: Any


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
        if "format" in config or "damc" in config:
            raise BadInput("the settings 'format' and 'damc' belong to the run folder itself")
        try:
            plain = json.loads(json.dumps(dict(config), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise BadInput(f"the settings of a run are plain JSON values: {error}") from error
        with files.on_disk("read", path):
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
        files.write_atomically(path / "config.json", json.dumps(head | plain, indent=2) + "\n")
        return cls(path, plain)

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open a folder that `create` made."""
        path = Path(path)
        file = path / "config.json"
        with files.on_disk("read", file):
            if not path.is_dir():
                raise BadInput(f"there is no folder {path}: a run folder is wanted")
            if not file.is_file():
                raise BadInput(f"{path} is not a run folder: it has no config.json")
            text = file.read_bytes()
        try:
            config = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file} is damaged: it is not JSON") from error
        if not isinstance(config, dict) or "format" not in config:
            raise BadInput(f"{path} is not a damc run folder: its config.json names no format")
        written_by = config.pop("damc", "unknown")
        version = config.pop("format")
        if version != FORMAT:
            raise BadInput(
                f"{path} has run format {version!r}, written by damc {written_by}, "
                f"but this is damc {_version()}, which reads format {FORMAT}"
            )
        return cls(path, config)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for training, and clear away what a killed process left behind."""
        # The number stands in a file of its own: Windows lets nobody read a locked one.
        lock, holder = FileLock(self.path / "lock"), self.path / "lock.pid"
        with files.on_disk("write in", self.path):
            try:
                lock.acquire(blocking=False)
            except Timeout:
                raise BadInput(
                    f"{self.path} is being trained by process {_first_line(holder)}"
                ) from None
        try:
            files.write_atomically(holder, f"{os.getpid()}\n")
            with files.on_disk("write in", self.path):
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

        A full or unwritable disk raises `BadInput` and leaves the checkpoints that were there.

        Args:
            iteration: learning updates done so far.
            weights: the tensors of the networks, by name.
            resume: anything `pack` takes: optimizers, random states, counters.
            keep: how many checkpoints stay.
        """
        if iteration < 0 or keep < 1:
            raise BadInput(f"iteration {iteration} and keep {keep}: want at least 0 and 1")
        # Saving behind an intact checkpoint would hide the new one; behind a damaged one it is
        # the resume after `load` fell back, and the damaged one has to go.
        damaged = [later for later in self.checkpoints() if later > iteration]
        for later in damaged:
            if isinstance(self._read(later, None), Checkpoint):
                raise BadInput(
                    f"{self.path} already holds iteration {later}, later than {iteration}: "
                    "load it before training on, or give a new folder"
                )
        tensors, state = pack(resume)
        blobs = {
            "weights.safetensors": files.to_safetensors(weights),
            "resume.safetensors": files.to_safetensors(tensors),
        }
        digests = {name: hashlib.sha256(blob).hexdigest() for name, blob in blobs.items()}
        record = {"iteration": iteration, "sha256": digests, "state": state}
        blobs["resume.json"] = json.dumps(record, allow_nan=False).encode()

        root = self.path / "checkpoints"
        target = root / f"{iteration:08d}"
        replaced = target.with_suffix(".old")
        temporary = files.temporary_beside(target)
        with files.on_disk("write in", self.path):
            root.mkdir(exist_ok=True)
            files.sync_folder(self.path)
            try:
                temporary.mkdir()
                for name, blob in blobs.items():
                    files.write_synced(temporary / name, blob)
                files.sync_folder(temporary)
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
            files.sync_folder(root)
            older = [earlier for earlier in self.checkpoints() if earlier < iteration]
            extra = older[: max(0, len(older) - keep + 1)] + damaged
            for folder in [self._folders()[number] for number in extra]:
                _discard(folder)
            if replaced.exists():
                _discard(replaced)
        return target

    def checkpoints(self) -> list[int]:
        """Iterations of the complete checkpoints, oldest first."""
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
        for number in reversed(found):
            checkpoint = self._read(number, device)
            if isinstance(checkpoint, Checkpoint):
                return checkpoint
            sentence = f"checkpoint {number} of {self.path} is damaged: {checkpoint}"
            if iteration is not None:
                raise BadInput(sentence)
            warnings.warn(f"{sentence}; the one before it is used", stacklevel=2)
        what = "only damaged checkpoints" if found else "no checkpoint yet"
        raise BadInput(f"there is nothing to load: {self.path} has {what}")

    def log(self, record: Mapping[str, float | int | str]) -> None:
        """Append a line to `metrics.jsonl`. JSON has no infinities: they become null."""
        path = self.path / "metrics.jsonl"
        with files.on_disk("write in", self.path):
            with path.open("a+b") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - 1))
                torn = end > 0 and file.read(1) != b"\n"
            if torn:
                # A killed process stopped inside a line; appending to it would lose ours as well.
                self._write_metrics(self.metrics())
            with path.open("ab") as file:
                file.write(_line(record))

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, without the last line if a crash tore it."""
        path = self.path / "metrics.jsonl"
        with files.on_disk("read", path):
            lines = path.read_bytes().split(b"\n") if path.exists() else []
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line) if line.strip() else None
            except ValueError:
                record = None
            if isinstance(record, dict):
                records.append(record)
            elif line.strip() and number < len(lines):
                warnings.warn(f"line {number} of {path} is no record: left out", stacklevel=2)
        return records

    def truncate_metrics(self, iteration: int) -> None:
        """Forget what was logged after `iteration`: a resumed run logs it again."""
        records = self.metrics()
        self._write_metrics([r for r in records if (r.get("iteration") or 0) <= iteration])

    def write(self, name: str, data: bytes | str) -> Path:
        """Write any other file of the run, such as `"samples/00001000.png"`, atomically."""
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise BadInput(f"{name!r} leads out of the run folder {self.path}")
        return files.write_atomically(path, data)

    def _write_metrics(self, records: list[dict[str, Any]]) -> None:
        files.write_atomically(self.path / "metrics.jsonl", b"".join(map(_line, records)))

    def _folders(self) -> dict[int, Path]:
        """Complete checkpoints; a replaced one (`.old`) counts while its successor is missing."""
        found: dict[int, Path] = {}
        for folder in sorted((self.path / "checkpoints").glob("[0-9]*"), reverse=True):
            name = re.fullmatch(r"(\d{8,})(\.old)?", folder.name)
            if name and all(map(Path.is_file, [folder / file for file in _FILES])):
                found[int(name[1])] = folder  # "00000001" comes after "00000001.old" and wins
        return found

    def _read(self, iteration: int, device: torch.device | str | None) -> Checkpoint | str:
        """The checkpoint, or what is wrong with it."""
        try:
            folder = self._folders()[iteration]
            record = json.loads((folder / "resume.json").read_bytes())
            for name in _TENSOR_FILES:
                with (folder / name).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != record["sha256"][name]:
                        return f"{name} is not what was saved"
            weights = load_weights(folder / "weights.safetensors", device)
            resume = unpack(load_weights(folder / "resume.safetensors"), record["state"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            return f"{type(error).__name__}: {error}"
        return Checkpoint(iteration, weights, resume)

    def _clear_leftovers(self) -> None:
        for leftover in [*self.path.rglob(f"{files.TEMPORARY}*")]:
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
        for old in [*(self.path / "checkpoints").glob("*.old")]:
            if old.with_suffix("").exists():
                _discard(old)
            else:
                old.rename(old.with_suffix(""))


_TENSOR_FILES = ("weights.safetensors", "resume.safetensors")
_FILES = (*_TENSOR_FILES, "resume.json")


def _discard(folder: Path) -> None:
    """Remove a checkpoint in one rename, so that it is never seen half removed."""
    trash = files.temporary_beside(folder)
    folder.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)  # what stays is cleared at the next `lock`


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def _line(record: Mapping[str, Any]) -> bytes:
    lost = {k: None for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)}
    return json.dumps({**record, **lost}).encode() + b"\n"


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
