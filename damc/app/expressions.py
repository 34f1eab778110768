"""Log-densities of x and y, typed as mathematical expressions.

They are parsed into a tree of the operations below, by a parser that knows nothing else, and never
evaluated as code:

    sum      ->  product (("+" | "-") product)*
    product  ->  sign (("*" | "/") sign)*
    sign     ->  ("+" | "-") sign | power
    power    ->  atom (("^" | "**") sign)?
    atom     ->  number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

__all__ = ["CONSTANTS", "FUNCTIONS", "Expression", "parse"]

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from damc.errors import BadInput

MOST_CHARACTERS = 1000
MOST_DEPTH = 40
MOST_OPERATIONS = 300

CONSTANTS = {"pi": math.pi, "e": math.e}
"""Names of numbers."""


class Function(NamedTuple):
    """An operation with how few and how many arguments it takes."""

    apply: Callable[..., Tensor]
    least: int = 1
    most: int = 1


def _pairwise(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *terms: functools.reduce(operation, terms)


FUNCTIONS: dict[str, Function] = {
    "exp": Function(torch.exp),
    "log": Function(torch.log),
    "sqrt": Function(torch.sqrt),
    "abs": Function(torch.abs),
    "sin": Function(torch.sin),
    "cos": Function(torch.cos),
    "tan": Function(torch.tan),
    "tanh": Function(torch.tanh),
    "atan2": Function(torch.atan2, 2, 2),
    "min": Function(_pairwise(torch.minimum), 2, 20),
    "max": Function(_pairwise(torch.maximum), 2, 20),
    # log(exp(a) + exp(b) + ...), without underflow: how a mixture is written
    "logsumexp": Function(_pairwise(torch.logaddexp), 2, 40),
}
"""What an expression may call."""

_POINT = {"x": 0, "y": 1}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign>\*\*|[-+*/^(),]))"
)
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
}


@dataclass(frozen=True)
class Expression:
    """A parsed log-density.

    Attributes:
        text: as it was typed.
        steps: operations in the order in which a stack machine carries them out.
    """

    text: str
    steps: tuple[tuple[str, Any], ...]

    def __call__(self, z: Tensor) -> Tensor:
        """log p~ at points z, ``(B, 2)`` to ``(B,)``."""
        stack: list[Tensor] = []
        for kind, what in self.steps:
            if kind == "coordinate":
                stack.append(z[:, what])
            elif kind == "number":
                stack.append(torch.full_like(z[:, 0], what))
            else:
                apply, count = what
                arguments = stack[-count:]
                del stack[-count:]
                stack.append(apply(*arguments))
        return stack[0]


def parse(text: str) -> Expression:
    """The expression that a text holds.

    Args:
        text: of the names x and y, numbers, ``+ - * / ^``, brackets, `CONSTANTS`, `FUNCTIONS`.

    Raises:
        BadInput: if it is anything else, or too long, or too deep, in one sentence.

    Example:
        >>> parse("-x^2/2 - 2*(y - x^2)^2")(torch.tensor([[1.0, 2.0]])).tolist()
        [-2.5]
    """
    if len(text) > MOST_CHARACTERS:
        raise BadInput(
            f"the log-density must have at most {MOST_CHARACTERS:,} characters, got {len(text):,}"
        )
    parser = _Parser(_tokens(text))
    parser.sum(0)
    if parser.next is not None:
        raise BadInput(f"the log-density must end after {parser.before}, got {parser.next!r}")
    if not any(kind == "coordinate" for kind, _ in parser.steps):
        raise BadInput(f"the log-density must depend on x or y, got {text.strip()!r}")
    return Expression(text.strip(), tuple(parser.steps))


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            strange = text[at:].strip()[0]
            raise BadInput(
                f"the log-density must be made of numbers, names, + - * / ^ and brackets, "
                f"got {strange!r}"
            )
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    if not found:
        raise BadInput("the log-density must be an expression in x and y, got nothing")
    return found


class _Parser:
    """Recursive descent; `steps` collects operations, operands first."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.at = tokens, 0
        self.steps: list[tuple[str, Any]] = []

    @property
    def next(self) -> str | None:
        """The token that comes next."""
        return self.tokens[self.at][1] if self.at < len(self.tokens) else None

    @property
    def before(self) -> str:
        """The last token taken, for messages."""
        return repr(self.tokens[self.at - 1][1]) if self.at else "the beginning"

    def take(self, *wanted: str) -> str | None:
        """The next token, if it is one of those wanted, taken."""
        token = self.next
        if token not in wanted:
            return None
        self.at += 1
        return token

    def expect(self, wanted: str) -> None:
        """Takes a token that has to come."""
        if self.take(wanted) is None:
            raise BadInput(
                f"the log-density must have {wanted!r} after {self.before}, "
                f"got {'its end' if self.next is None else repr(self.next)}"
            )

    def emit(self, kind: str, what: Any) -> None:
        """One more operation."""
        if len(self.steps) >= MOST_OPERATIONS:
            raise BadInput(f"the log-density must have at most {MOST_OPERATIONS} operations")
        self.steps.append((kind, what))

    def sum(self, depth: int) -> None:
        self.product(depth)
        while sign := self.take("+", "-"):
            self.product(depth)
            self.emit("apply", (_BINARY[sign], 2))

    def product(self, depth: int) -> None:
        self.sign(depth)
        while sign := self.take("*", "/"):
            self.sign(depth)
            self.emit("apply", (_BINARY[sign], 2))

    def sign(self, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise BadInput(f"the log-density must be nested at most {MOST_DEPTH} deep")
        sign = self.take("+", "-")
        if sign is None:
            self.power(depth)
            return
        self.sign(depth + 1)
        if sign == "-":
            self.emit("apply", (torch.neg, 1))

    def power(self, depth: int) -> None:
        self.atom(depth)
        if self.take("^", "**"):
            self.sign(depth + 1)
            self.emit("apply", (torch.pow, 2))

    def atom(self, depth: int) -> None:
        if self.take("("):
            self.sum(depth + 1)
            self.expect(")")
            return
        if self.next is None:
            raise BadInput(f"the log-density must go on after {self.before}, got its end")
        kind, token = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            self.emit("number", _number(token))
        elif kind == "name" and self.next == "(":
            self.call(token, depth)
        elif token in _POINT:
            self.emit("coordinate", _POINT[token])
        elif token in CONSTANTS:
            self.emit("number", CONSTANTS[token])
        elif token in FUNCTIONS:
            raise BadInput(f"{token} must be called, as in {token}(x), got {token!r} alone")
        elif kind == "name":
            names = ", ".join([*_POINT, *CONSTANTS, *FUNCTIONS])
            raise BadInput(f"names in the log-density must be among {names}, got {token!r}")
        else:
            raise BadInput(f"the log-density must have a number or a name where it has {token!r}")

    def call(self, name: str, depth: int) -> None:
        if name not in FUNCTIONS:
            raise BadInput(f"functions must be among {', '.join(FUNCTIONS)}, got {name!r}")
        function = FUNCTIONS[name]
        self.expect("(")
        self.sum(depth + 1)
        count = 1
        while self.take(","):
            self.sum(depth + 1)
            count += 1
        self.expect(")")
        if not function.least <= count <= function.most:
            few = str(function.least)
            wanted = few if function.least == function.most else f"{few} to {function.most}"
            raise BadInput(f"{name} must have {wanted} arguments, got {count}")
        self.emit("apply", (function.apply, count))


def _number(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise BadInput(f"numbers in the log-density must be finite, got {token}")
    return value
