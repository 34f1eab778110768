"""Damage to folders of files, and what reading them says: told, unchanged, silent, raw or hung."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from damc.disk import seal
from damc.errors import BadInput

Read = Callable[[Path], Any]
"""Reads all that a folder holds and gives back a value to compare."""

SECONDS = 20
"""Reading that takes longer hangs."""


class Hang(BaseException):
    """Not an `Exception`, so that nothing swallows it."""


def outcome(read: Read, folder: Path, intact: Any) -> str:
    """What became of reading a folder: "told", "unchanged", or a failure and its words."""
    with warnings.catch_warnings(record=True) as caught, _alarm():
        warnings.simplefilter("always")
        try:
            found = read(folder)
        except BadInput as error:
            assert "\n" not in str(error)
            return "told"
        except Hang:
            return "HANG"
        except Exception as error:  # noqa: BLE001
            return f"RAW {type(error).__name__}: {error}"
    if found == intact:
        return "unchanged"
    return "told" if caught else "SILENT"


@contextmanager
def damaged(folder: Path, place: Path) -> Iterator[Path]:
    """A copy of a folder to do harm to."""
    shutil.copytree(folder, place, symlinks=True)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def files_of(folder: Path) -> list[Path]:
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


def flip(folder: Path, dice: random.Random) -> str:
    """One bit of one file; every file is as likely, however small."""
    name = dice.choice([f for f in files_of(folder) if (folder / f).stat().st_size])
    return f"{flip_file(folder / name, dice)} of {name}"


def flip_file(path: Path, dice: random.Random) -> str:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    # Half of the flips hit the first kilobyte, where the headers are.
    end = len(data) if dice.random() < 0.5 else min(len(data), 1024)
    place, bit = dice.randrange(end), dice.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place}"


def mutate(folder: Path, dice: random.Random) -> str:
    """One structural change of one file or folder."""
    kind = dice.choice(list(STRUCTURAL))
    names = files_of(folder)
    name = dice.choice([n for n in names if n.suffix == ".json"] if "json" in kind else names)
    STRUCTURAL[kind](folder / name, dice)
    return f"{kind}: {name}"


def _truncate(path: Path, dice: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: dice.randrange(path.stat().st_size + 1)])


def _extend(path: Path, dice: random.Random) -> None:
    path.write_bytes(path.read_bytes() + dice.randbytes(dice.randrange(1, 50)))


def _swap(path: Path, dice: random.Random) -> None:
    others = [p for p in path.parent.rglob("*") if p.is_file() and p != path]
    if others:
        path.write_bytes(dice.choice(others).read_bytes())


def _lines(path: Path, dice: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    dice.shuffle(lines)
    path.write_bytes(b"".join(lines[: max(1, len(lines) - 1)]))


def _remove(path: Path, dice: random.Random) -> None:
    path.unlink()


def _folder(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path, dice: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path, dice: random.Random) -> None:
    path.unlink()
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(path.parent)  # names of sockets are short
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


def _device(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _loop(path: Path, dice: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _rename(path: Path, dice: random.Random) -> None:
    steps = [p for p in path.parents if p.name.isdigit()]
    target = steps[0] if steps else path
    new = f"{int(target.name) + 7:08d}" if steps else target.name + "x"
    target.rename(target.with_name(new))


VALUES: list[Any] = [None, [], {}, "x", -1, 1.5, True, 10**30, [[1]], {"a": None}]


def change(value: Any, dice: random.Random) -> Any:
    """Another value somewhere in a JSON document."""
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        if dice.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: change(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.6:
        i = dice.randrange(len(value))
        return [*value[:i], change(value[i], dice), *value[i + 1 :]]
    return dice.choice(VALUES)


def _json_value(path: Path, dice: random.Random) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()), dice)))


def _json_deep(path: Path, dice: random.Random) -> None:
    depth = dice.choice([100, 900, 100_000])
    document = json.loads(path.read_text())
    text = json.dumps({**document, dice.choice(list(document)): "HERE"})
    path.write_text(text.replace('"HERE"', "[" * depth + "]" * depth))


def _json_twice(path: Path, dice: random.Random) -> None:
    document = json.loads(path.read_text())
    key = dice.choice(list(document))
    value = json.dumps(dice.choice(VALUES))
    path.write_text(f"{json.dumps(document)[:-1]}, {json.dumps(key)}: {value}}}")


def _json_number(path: Path, dice: random.Random) -> None:
    text = json.dumps({**json.loads(path.read_text()), "extra": "HERE"})
    path.write_text(text.replace('"HERE"', dice.choice(["NaN", "Infinity", "1" * 5000, "1e999"])))


STRUCTURAL: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _truncate,
    "extended": _extend,
    "another file's content": _swap,
    "lines in another order": _lines,
    "removed": _remove,
    "a folder": _folder,
    "a named pipe": _pipe,
    "a socket": _socket,
    "a device": _device,
    "a loop of links": _loop,
    "renamed": _rename,
    "json value": _json_value,
    "json deep": _json_deep,
    "json twice": _json_twice,
    "json number": _json_number,
}


def forge(folder: Path, dice: random.Random) -> str:
    """A document of other values under a seal that fits: made by hand, not by an accident."""
    name = dice.choice([n for n in files_of(folder) if n.suffix == ".json"])
    document = json.loads((folder / name).read_text())
    document.pop("seal")
    changed = change(document, dice)
    if not isinstance(changed, dict):
        changed = {"format": changed}
    changed.pop("seal", None)
    (folder / name).write_bytes(seal(changed))
    return f"forged: {name}"


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
