"""Options of commands, described without tyro, which only parsing imports."""

from __future__ import annotations

__all__ = ["Option", "parse"]

import contextlib
import io
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from damc.errors import BadInput

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """How a field of a command is written on the command line, inside `Annotated`.

    Attributes:
        value: what its value is called in the help.
        name: what the option is called, if not like the field.
        positional: it has no name, only a place.
        repeated: it may be given several times, and the values add up.
    """

    value: str
    name: str | None = None
    positional: bool = False
    repeated: bool = False


def parse(kind: type[T], prog: str, words: Sequence[str]) -> T:
    """A command of that kind, a dataclass, filled from the words; help exits.

    Raises:
        BadInput: the words make no sense, in one sentence.
    """
    import tyro

    hints = typing.get_type_hints(kind, include_extras=True)
    # tyro finds the words of the help in the class itself, so it is given that class, not a copy.
    kind.__annotations__ = {name: _for_tyro(hints[name]) for name in kind.__annotations__}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(kind, prog=prog, args=words, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as end:
        if not end.code:
            raise
        raise BadInput(f"{_sentence(complaint.getvalue())}; {prog} --help says more") from None


def _sentence(box: str) -> str:
    """What tyro says in a box of several lines: its first part, and what may have been meant."""
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        inside = line.strip("│").rstrip()
        if not line.startswith("│"):
            continue  # the frame
        if set(inside.strip()) == {"─"}:
            parts.append([])
        elif len(inside) - len(inside.lstrip()) <= 5:  # deeper lines are the option's own help
            parts[-1].append(inside.strip())
    said = " ".join(parts[0] or box.split()).rstrip(".")
    for pattern, words in _PLAIN.items():
        said = re.sub(pattern, words, said)
    meant = [part[1] for part in parts[1:] if part[:1] == ["Perhaps you meant:"]]
    return f"{said}; did you mean {meant[0]}?" if meant else said


_PLAIN = {
    r"^Missing from damc [a-z-]+:": "this command wants",
    r"^Error parsing (\S+):": r"\1:",
    r"invalid literal for int\(\) with base 10:": "a whole number is wanted, got",
    r"could not convert string to float:": "a number is wanted, got",
    r"^Unrecognized options:": "there is no option",
    r"^invalid choice (\S+) for argument '(\S+)'\. Expected one of \((.*)\)": (
        r"\2 is one of \3, got \1"
    ),
    r"Could not find valid parse for arguments:": "cannot read",
    r"^Missing value for argument '(\S+)'\..*": r"\1 wants a value",
}
"""tyro's words for what goes wrong, and ours."""


def _for_tyro(hint: Any) -> Any:
    import tyro

    option = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Option)), None)
    if option is None:
        return hint
    conf: Any = tyro.conf  # its markers are applied to types that are known only here
    inner = typing.get_args(hint)[0]
    # "(default: None)" helps nobody; the words of such an option say what holds without it.
    silent = option.positional or types.NoneType in typing.get_args(inner)
    if option.positional:
        inner = conf.Positional[inner]
    if option.repeated:
        inner = conf.UseAppendAction[inner]
    hint_shown = "" if silent else None
    argument = conf.arg(name=option.name, metavar=option.value, help_behavior_hint=hint_shown)
    return Annotated[inner, argument]
