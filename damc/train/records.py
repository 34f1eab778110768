"""`metrics.jsonl`: one JSON record a line, appended, and readable after any crash.

`metrics.seal` beside it remembers the last checkpoint, how long the file was then, and the digest
of so much: lines that were changed since are told, and so is a checkpoint that went away.
"""

from __future__ import annotations

__all__ = ["append", "cut", "read", "remember", "remembered", "sync"]

import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from damc import disk
from damc.errors import BadInput


def append(path: Path, record: Mapping[str, float | int | str]) -> None:
    """Add a line. JSON has no infinities: they become null."""
    with disk.on_disk("write in", path.parent):
        _mend(path)
        with disk.open_plain(path, "ab") as file:
            file.write(_line(record))


def read(path: Path) -> list[dict[str, Any]]:
    """The records, without the last line if a crash tore it; warns of what was changed."""
    data = disk.read(path) if _there(path) else b""
    fault = _fault(path, data)
    if fault:
        warnings.warn(f"{path} is damaged or was edited: {fault}", stacklevel=3)
    records = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is not None:
            records.append(record)
        elif line.strip() and number < len(lines):
            warnings.warn(f"line {number} of {path} is no record: left out", stacklevel=3)
    return records


def sync(path: Path) -> None:
    """Bring the lines to the disk, before a checkpoint."""
    if _there(path):
        with disk.on_disk("write in", path.parent), disk.open_plain(path, "r+b") as file:
            os.fsync(file.fileno())


def remember(path: Path, iteration: int) -> None:
    """Remember a checkpoint and the lines so far."""
    _remember(path, iteration, disk.read(path) if _there(path) else b"")


def remembered(path: Path) -> int:
    """The iteration of the last checkpoint that there was; 0 before the first, or if damaged."""
    try:
        iteration = disk.read_sealed(_seal(path)).get("iteration")
    except BadInput:
        return 0  # which `read` tells
    return iteration if isinstance(iteration, int) else 0


def cut(path: Path, iteration: int) -> None:
    """Forget the records after `iteration`: a resumed run logs them again."""
    kept = [r for r in read(path) if _number(r.get("iteration")) <= iteration]
    data = b"".join(map(_line, kept))
    _remember(path, iteration, data)  # first: the file begins with these lines before and after
    disk.write_atomically(path, data)


def _remember(path: Path, iteration: int, data: bytes) -> None:
    extent = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    disk.write_atomically(_seal(path), disk.seal({"iteration": iteration, **extent}))


def _fault(path: Path, data: bytes) -> str:
    """Why the file is not what was remembered; nothing if it is, or nothing is remembered."""
    if not _there(_seal(path)):
        return ""  # before the first checkpoint
    try:
        known = disk.read_sealed(_seal(path))
    except BadInput as error:
        return str(error)
    length = known.get("bytes")
    if not isinstance(length, int) or not 0 <= length <= len(data):
        return "lines are missing"
    if hashlib.sha256(data[:length]).hexdigest() != known.get("sha256"):
        return "it is not what was saved"
    return ""


def _seal(path: Path) -> Path:
    return path.with_suffix(".seal")


def _mend(path: Path) -> None:
    """End a line in which a killed process stopped; appending to it would lose ours as well."""
    if not _there(path):
        return
    with disk.open_plain(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end == 0 or file.read(1) == b"\n":
            return
        file.seek(0)
        tail = file.read().rpartition(b"\n")[2]
        if _record(tail) is not None:
            file.write(b"\n")
        else:
            file.truncate(end - len(tail))


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _line(record: Mapping[str, Any]) -> bytes:
    lost = {k: None for k, v in record.items() if isinstance(v, float) and not math.isfinite(v)}
    return json.dumps({**record, **lost}).encode() + b"\n"
