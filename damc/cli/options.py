"""Options of commands; tyro, which parses them, is imported only then."""

from __future__ import annotations

__all__ = ["Option", "parse"]

import ast
import contextlib
import inspect
import io
import itertools
import re
import shutil
import sys
import textwrap
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
        value: the placeholder of its value in the help.
        name: of the option, if it is not that of the field.
        positional: whether it is an argument without a name.
        repeated: whether it may be given several times; the values are joined.
    """

    value: str
    name: str | None = None
    positional: bool = False
    repeated: bool = False


def parse(kind: type[T], prog: str, words: Sequence[str]) -> T:
    """The command, a dataclass of type `kind`, with the words parsed; `--help` exits.

    Raises:
        BadInput: for words that cannot be parsed, in one sentence.
    """
    import tyro

    hints, helps = typing.get_type_hints(kind, include_extras=True), _helps(kind)
    kind.__annotations__ = {
        name: _for_tyro(hints[name], helps[name]) for name in kind.__annotations__
    }
    output, printed = io.StringIO(), io.StringIO()
    # Into a string tyro writes plain lines instead of boxes, of which `_sentence` is made.
    helping = {"-h", "--help"} & set(words)
    plain = contextlib.redirect_stdout(printed) if helping else contextlib.nullcontext()
    try:
        with contextlib.redirect_stderr(output), plain:
            command = tyro.cli(kind, prog=prog, args=words, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as end:
        if not end.code:
            sys.stdout.write(_wrapped(printed.getvalue()))
            raise
        raise BadInput(f"{_sentence(output.getvalue())}; see {prog} --help") from None
    for seed in (getattr(command, "seed", None), *getattr(command, "seeds", ())):
        if seed is not None and not 0 <= seed < 2**32:  # what NumPy's generators take
            raise BadInput(f"seed must be from 0 to {2**32 - 1}, got {seed}")
    return command


def _sentence(box: str) -> str:
    """tyro's message, a box of several lines, as a sentence: its first part, and its suggestion."""
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
    r"^Missing from damc [a-z-]+:": "this command needs",
    r"^Error parsing (\S+):": r"\1:",
    r": no type matching .* instantiated from \['(.*?)'\].*<class 'int'>.*": (
        r" must be a whole number, got '\1'"
    ),
    r": no type matching .* instantiated from \['(.*?)'\].*<class 'float'>.*": (
        r" must be a number, got '\1'"
    ),
    r": no type matching .* instantiated from \[(.*?)\]\. .*tuple\[int.*": (
        r" must be whole numbers, got \1"
    ),
    r": no type matching .* instantiated from \[(.*?)\]\. .*tuple\[float, float\].*": (
        r" must be two numbers, got \1"
    ),
    r": Could not find valid parse for arguments: \[(.*)\]": r" must be whole numbers, got \1",
    r": invalid literal for int\(\) with base 10:": " must be a whole number, got",
    r": could not convert string to float:": " must be a number, got",
    r"^Unrecognized options:": "there is no option",
    r"^invalid choice (\S+) for argument '(\S+)'\. Expected one of \((.*)\)": (
        r"\2 must be one of \3, got \1"
    ),
    r"^Missing value for argument '(\S+)'\..*": r"\1 must have a value",
}
"""tyro's messages, as patterns, and ours."""


def _helps(kind: type) -> dict[str, str]:
    """The strings under the fields of a dataclass, by field, each as one line: where lines of the
    source end is no matter of the help."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    found = {}
    for field, below in itertools.pairwise(node.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _wrapped(text: str) -> str:
    """The help, its paragraphs as wide as the terminal; tyro wraps options alone."""
    width = shutil.get_terminal_size().columns
    lines = [line.rstrip() for line in text.splitlines()]
    filled = [textwrap.fill(line, width) if line[:1].strip() else line for line in lines]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(filled)).rstrip() + "\n"


def _for_tyro(hint: Any, text: str) -> Any:
    import tyro

    option = next((m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Option)), None)
    conf: Any = tyro.conf  # its markers are applied to types that are known only here
    if option is None:
        return Annotated[hint, conf.arg(help=text, help_behavior_hint="" if hint is bool else None)]
    inner = typing.get_args(hint)[0]
    # Instead of "(default: None)", the help text of such an option describes its default.
    silent = option.positional or types.NoneType in typing.get_args(inner)
    if option.positional:
        inner = conf.Positional[inner]
    if option.repeated:
        inner = conf.UseAppendAction[inner]
    hint_shown = "" if silent else None
    argument = conf.arg(
        name=option.name, metavar=option.value, help=text, help_behavior_hint=hint_shown
    )
    return Annotated[inner, argument]
