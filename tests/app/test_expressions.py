"""Typed log-densities: right values and gradients, and nothing that is not mathematics."""

from __future__ import annotations

import math

import pytest
import torch

from damc.app.densities import EXAMPLES
from damc.app.expressions import parse
from damc.errors import BadInput

Z = torch.tensor([[0.3, -1.2], [2.0, 0.5], [-1.5, 3.0]], dtype=torch.float64)
X, Y = Z.T


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x + 2*y - 3", X + 2 * Y - 3),
        ("-x^2", -X.square()),
        ("2^-x", 2**-X),
        ("2^3^2 + 0*x", torch.full_like(X, 512.0)),
        ("x - y - 1", X - Y - 1),
        ("x / y / 2", X / Y / 2),
        ("x**2 * -y", X.square() * -Y),
        ("--x", X),
        ("(x + y) * (x - y)", (X + Y) * (X - Y)),
        ("1.5e-1*x + .5", 0.15 * X + 0.5),
        ("sin(pi*x) + log(e)", torch.sin(math.pi * X) + 1),
        ("atan2(y, x)", torch.atan2(Y, X)),
        ("max(x, y, 1)", torch.maximum(torch.maximum(X, Y), torch.ones_like(X))),
        ("logsumexp(x, y, 0)", torch.logsumexp(torch.stack([X, Y, 0 * X]), 0)),
    ],
)
def test_expressions_have_the_value_that_they_read_as(text: str, value: torch.Tensor) -> None:
    torch.testing.assert_close(parse(text)(Z), value)


def test_gradients_are_those_of_the_formula() -> None:
    z = Z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(parse("-x^2/2 - 2*(y - x^2)^2")(z).sum(), z)
    u = Y - X.square()
    torch.testing.assert_close(gradient, torch.stack([-X + 8 * X * u, -4 * u], 1))


@pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES)
def test_the_examples_of_the_page_are_finite_somewhere(text: str) -> None:
    assert torch.isfinite(parse(text)(Z)).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__import__('os').system('ls')", r"functions must be among|must be made of"),
        ("__import__(x)", "functions must be among .*, got '__import__'"),
        ("x.real", "must be made of numbers, names"),
        ("x.__class__", "must be made of numbers, names"),
        ("x[0]", "got '\\['"),
        ("lambda x", "names in the log-density must be among .*, got 'lambda'"),
        ("exec", "names in the log-density must be among"),
        ("x; y", "got ';'"),
        ("'x'", "must be made of"),
        ("x = 1", "got '='"),
        ("x if y else x", "must end after 'x', got 'if'"),
        ("exp", "exp must be called"),
        ("exp(x, y)", "exp must have 1 arguments, got 2"),
        ("max(x)", "max must have 2 to 20 arguments, got 1"),
        ("", "got nothing"),
        ("   ", "got nothing"),
        ("x +", "must go on after '\\+', got its end"),
        ("(x", "must have '\\)' after 'x', got its end"),
        ("x)", "must end after 'x', got '\\)'"),
        ("x y", "must end after 'x', got 'y'"),
        ("2", "must depend on x or y"),
        ("1e999*x", "must be finite"),
        ("x" + "+x" * 499, "at most 300 operations"),
        ("(" * 10_000 + "x" + ")" * 10_000, "at most 1,000 characters, got 20,001"),
        ("(" * 400 + "x" + ")" * 400, "nested at most 40 deep"),
        ("-" * 900 + "x", "nested at most 40 deep"),
        ("x" + "^x" * 400, "nested at most 40 deep"),
        ("exp(" * 190 + "x" + ")" * 190, "nested at most 40 deep"),
    ],
)
def test_anything_else_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        parse(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
