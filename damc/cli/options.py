"""Options of commands, described without tyro, which only parsing imports."""

from __future__ import annotations

__all__ = ["Option", "parse"]

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

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
    """A command of that kind, a dataclass, filled from the words; help and errors exit."""
    import tyro

    hints = typing.get_type_hints(kind, include_extras=True)
    # tyro finds the words of the help in the class itself, so it is given that class, not a copy.
    kind.__annotations__ = {name: _for_tyro(hints[name]) for name in kind.__annotations__}
    return tyro.cli(kind, prog=prog, args=words, config=(tyro.conf.FlagCreatePairsOff,))


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
