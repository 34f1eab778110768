"""What `damc.sample` is given, looked at before anything is computed."""

from __future__ import annotations

__all__ = ["checked", "checked_seed", "positive", "positive_number", "whole"]

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from damc.density import LogProb, Target, as_log_prob
from damc.errors import BadInput
from damc.sampling.guard import Guarded, guarded
from damc.sampling.supports import Support

_TRIED = 8  # points
_ALIKE = 1e-3  # relative difference of one point's values that rounding may make
_SEEDS = 2**63  # that torch's generators take


def whole(value: Any) -> int | None:
    """A whole number of any kind, numpy's too, as an int; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def positive(**numbers: Any) -> tuple[int, ...]:
    """The numbers as ints; refuses what is not a positive whole number, by its name."""
    found = []
    for name, value in numbers.items():
        number = whole(value)
        if number is None or number < 1:
            raise BadInput(f"{name} must be a positive whole number, got {value!r}")
        found.append(number)
    return tuple(found)


def positive_number(**numbers: Any) -> None:
    """Refuses what is neither a positive number nor infinity, by its name."""
    for name, value in numbers.items():
        try:
            fine = not isinstance(value, bool | str) and float(value) > 0
        except (TypeError, ValueError):
            fine = False
        if not fine:
            raise BadInput(f"{name} must be a positive number, got {value!r}")


def checked_seed(seed: Any) -> int:
    """The seed as an int, if it is one that torch takes."""
    number = whole(seed)
    if number is None or not -_SEEDS <= number < _SEEDS:
        raise BadInput(f"seed must be a whole number of at most 63 bits, got {seed!r}")
    return number


def checked(
    log_prob: Target, dim: int, bijection: Support | None, generator: torch.Generator
) -> tuple[LogProb, Guarded]:
    """The target on unconstrained float64 points, tried out once, and the user's part of it."""
    function = as_log_prob(log_prob)
    size = dim if bijection is None else bijection.free
    u = torch.randn(_TRIED, size, dtype=torch.float64, generator=generator, device=generator.device)
    x = u if bijection is None else bijection(u)[0]
    value: Any = None
    problem: Exception | None = None
    for dtype in (torch.float64, torch.get_default_dtype()):
        try:
            value = function(x.detach().to(dtype).requires_grad_())
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            problem = problem or error
            continue
        break
    else:
        raise BadInput(_raised(function, problem, x, dim)) from problem
    if not isinstance(value, Tensor):
        raise BadInput(
            f"log_prob must return a tensor, got {type(value).__name__}: write it in torch "
            "operations instead of numpy's or Python's"
        )
    if value.shape != (_TRIED,):
        raise BadInput(
            f"log_prob must return one value for each point, shape ({_TRIED},) for ({_TRIED}, "
            f"{dim}), got shape {tuple(value.shape)}{_alone(function, x.to(dtype))}"
        )
    if not value.is_floating_point():
        raise BadInput(f"log_prob must return real numbers, got {value.dtype}")
    uniform = bijection is not None and bool((value == value[0]).all() and value[0].isfinite())
    if not value.requires_grad and not uniform:
        raise BadInput(
            "log_prob must depend on its points through torch operations, of which gradients are "
            "taken, got a value without one"
        )
    _check_rows(function, x.detach().to(dtype), value.detach())
    guard = guarded(function, dtype)
    return (guard if bijection is None else bijection.pull_back(guard)), guard


def _check_rows(function: LogProb, x: Tensor, value: Tensor) -> None:
    """Refuses a log-density that is random, or that depends on the other points of a batch."""
    index = torch.arange(len(x) - 3, -1, -1, device=x.device)  # fewer, in another order
    again: Any = function(x[index].requires_grad_())
    fine = isinstance(again, Tensor) and again.shape == index.shape
    if fine:
        expected = value[index]
        fine = torch.allclose(again.detach(), expected, _ALIKE, _ALIKE, equal_nan=True)
    if not fine:
        raise BadInput(
            "log_prob must give a point the same value in every batch and every time, got another "
            "one for it among fewer points: it must use no random numbers (such as dropout) and "
            "mix no points"
        )


def _raised(
    function: Callable[[Tensor], Any], problem: Exception | None, x: Tensor, dim: int
) -> str:
    """The sentence for a log-density that raised an exception on its first points."""
    first = str(problem).partition("\n")[0].rstrip(":. ")
    if "numpy()" in first:
        return (
            "log_prob must be written in torch operations instead of numpy's, since gradients are "
            f"taken of it, got one that raised {type(problem).__name__} on a tensor"
        )
    sentence = (
        f"log_prob must take points of shape (B, {dim}) in torch operations; on "
        f"({_TRIED}, {dim}) it raised {type(problem).__name__}: {first}"
    )
    if "within the support" in first:
        return f"{sentence}: say where the density lies by support="
    return sentence + _alone(function, x)


def _alone(function: Callable[[Tensor], Any], x: Tensor) -> str:
    """A hint if the log-density takes one point at a time, of x ``(B, d)``."""
    try:
        value = function(x[0].detach())
    except Exception:  # noqa: BLE001 - the user's code may raise anything
        return ""
    single = isinstance(value, Tensor) and value.shape == () and math.isfinite(float(value))
    return "; if it takes one point at a time, give torch.vmap(log_prob)" if single else ""
