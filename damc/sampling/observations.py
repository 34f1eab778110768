"""Observations of a conditional target, and simulated pairs, checked and in free coordinates."""

from __future__ import annotations

__all__ = [
    "Conditional",
    "Context",
    "as_conditional",
    "as_context",
    "as_observation",
    "check_alone",
]

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from damc.density import Target, as_log_prob
from damc.errors import BadInput
from damc.sampling.guard import guarded
from damc.sampling.supports import Support

_KINDS = (
    "a tensor of observations (N, ...), a pair of tensors (z, x) or a simulator "
    "(n, generator) -> (z, x)"
)


@dataclass(frozen=True)
class Conditional:
    """log p(z, x) on unconstrained points u.

    Attributes:
        log_prob: the user's, of z ``(B, dim)`` and x ``(B, ...)``.
        shape: of one observation.
        support: of z; None for all of R^dim.
        dtype: what the user's function takes.
    """

    log_prob: Callable[[Tensor, Tensor], Tensor]
    shape: tuple[int, ...]
    support: Support | None
    dtype: torch.dtype

    def __call__(self, u: Tensor, x: Tensor) -> Tensor:
        """Of points u ``(B, free)`` and flat observations x ``(B, k)``, ``(B,)``."""
        z, log_det = (u, 0.0) if self.support is None else self.support(u)
        value = self.log_prob(z.to(self.dtype), x.to(self.dtype).view(-1, *self.shape))
        return value.to(u.dtype) + log_det

    def points(self, u: Tensor) -> Tensor:
        """z of u, ``(B, dim)``."""
        return u if self.support is None else self.support(u)[0]


@dataclass(frozen=True)
class Context:
    """What an amortized posterior learns from.

    Attributes:
        simulate: n fresh pairs u ``(n, free)`` and x ``(n, k)``; None without a simulator.
        pairs: those given; None with a simulator.
        observations: ``(N, k)``, if they were given alone.
        shape: of one observation.
    """

    shape: tuple[int, ...]
    simulate: Callable[[int, torch.Generator], tuple[Tensor, Tensor]] | None = None
    pairs: tuple[Tensor, Tensor] | None = None
    observations: Tensor | None = None

    @property
    def size(self) -> int:
        """Of a flat observation."""
        return math.prod(self.shape)

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n pairs: fresh ones of the simulator, or any of those given."""
        if self.simulate is not None:
            return self.simulate(n, generator)
        assert self.pairs is not None
        where = torch.randint(len(self.pairs[0]), (n,), generator=generator)
        return self.pairs[0][where], self.pairs[1][where]


def as_context(
    given: Any, dim: int, support: Support | None, generator: torch.Generator
) -> Context:
    """What the user gave as `context`, tried out once."""
    if isinstance(given, Tensor):
        x = _flat(given, "context")
        if len(x) < 2:
            raise BadInput(
                f"context must hold many observations, (N, ...), got {len(x)}: for a single one "
                "fix it in log_prob and call damc.sample without context"
            )
        return Context(tuple(given.shape[1:]), observations=x)
    if isinstance(given, tuple | list) and len(given) == 2:
        u, x, shape = _pairs(given[0], given[1], dim, support)
        if len(u) < 100:
            raise BadInput(f"context must hold at least 100 pairs (z, x), got {len(u)}")
        return Context(shape, pairs=(u, x))
    if not callable(given):
        raise BadInput(f"context must be {_KINDS}, got {type(given).__name__}")

    def simulate(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return _simulated(given, n, dim, support, generator)[:2]

    return Context(_simulated(given, 8, dim, support, generator)[2], simulate=simulate)


def as_conditional(
    log_prob: Target,
    dim: int,
    context: Context,
    support: Support | None,
    generator: torch.Generator,
) -> Conditional:
    """The target, tried out on eight points and observations."""
    function: Any = as_log_prob(log_prob)
    x = context.draw(8, generator)[1] if context.observations is None else context.observations[:8]
    free = dim if support is None else support.free
    z = torch.zeros(len(x), free, dtype=torch.float64)
    value: Any = None
    problem: Exception | None = None
    for dtype in (torch.float64, torch.get_default_dtype()):
        target = Conditional(guarded(function, dtype), context.shape, support, dtype)
        points = target.points(z).to(dtype).requires_grad_()
        try:
            value = function(points, x.to(dtype).view(-1, *context.shape))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            problem = problem or error
            continue
        break
    else:
        raise BadInput(
            f"log_prob must take points (B, {dim}) and observations "
            f"{('B', *context.shape)} in torch operations; on {len(x)} of each it raised "
            f"{type(problem).__name__}: {problem}".replace("'B'", "B")
        ) from problem
    if not isinstance(value, Tensor):
        raise BadInput(f"log_prob must return a tensor, got {type(value).__name__}")
    if value.shape != (len(x),):
        raise BadInput(
            f"log_prob must return one value for each pair of a point and an observation, shape "
            f"({len(x)},), got shape {tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise BadInput("log_prob must depend on its points through torch operations")
    return target


def as_observation(x: Any, shape: tuple[int, ...]) -> Tensor:
    """One observation, checked, ``(1, k)``."""
    if not isinstance(x, Tensor):
        raise BadInput(
            f"x must be a tensor, got {type(x).__name__}: torch.as_tensor makes one of an array"
        )
    if tuple(x.shape) not in (shape, (1, *shape)):
        raise BadInput(f"x must be one observation of shape {shape}, got shape {tuple(x.shape)}")
    return _flat(x.reshape(1, *shape), "x")


def check_alone(log_prob: Target) -> None:
    """Raises `BadInput` for a log-density that wants an observation beside its points."""
    try:
        parameters = inspect.signature(as_log_prob(log_prob)).parameters.values()
    except (TypeError, ValueError):  # some callables have no signature
        return
    wanted = [
        p for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]  # fmt: skip
    if len(wanted) == 2:
        raise BadInput(
            f"context must be given for a log_prob of two arguments, ({wanted[0].name}, "
            f"{wanted[1].name}): {_KINDS}"
        )


def _simulated(
    simulator: Any, n: int, dim: int, support: Support | None, generator: torch.Generator
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    try:
        found = simulator(n, generator)
    except TypeError as error:
        raise BadInput(f"context must be {_KINDS}; calling it raised {error}") from error
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise BadInput(
            f"the simulator must return a pair of tensors (z, x), got {type(found).__name__}"
        )
    u, x, shape = _pairs(found[0], found[1], dim, support)
    if len(u) != n:
        raise BadInput(f"the simulator must return as many pairs as it is asked for, {n}, "
                       f"got {len(u)}")  # fmt: skip
    return u, x, shape


def _pairs(
    z: Any, x: Any, dim: int, support: Support | None
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    for name, value in (("z", z), ("x", x)):
        if not isinstance(value, Tensor):
            raise BadInput(
                f"{name} of the pairs must be a tensor, got {type(value).__name__}: "
                "torch.as_tensor makes one of an array"
            )
    if z.shape[1:] != (dim,) or len(z) != len(x):
        raise BadInput(
            f"pairs must be z of shape (N, {dim}) and as many x, got {tuple(z.shape)} and "
            f"{tuple(x.shape)}"
        )
    flat = _flat(x, "x of the pairs")
    u = z.double() if support is None else support.inverse(z.double())
    # A point outside has no coordinates, or those of another point.
    back = u if support is None else support(u)[0]
    usable = u.isfinite().all(1) & ((back - z).abs() <= 1e-4 * (1 + z.abs())).all(1)
    if not bool(z.isfinite().all()) or int(usable.sum()) < 0.99 * len(z):
        raise BadInput(
            "z of the pairs must be finite and inside the support, got "
            f"{len(z) - int(usable.sum())} of {len(z)} that are not"
        )
    # On the support's very edge, by rounding: someone else's point and observation instead.
    inside = usable.nonzero()[:, 0]
    where = torch.where(usable, torch.arange(len(z)), inside[torch.arange(len(z)) % len(inside)])
    return u[where], flat[where], tuple(x.shape[1:])


def _flat(x: Tensor, name: str) -> Tensor:
    if x.ndim < 1 or not len(x):
        raise BadInput(f"{name} must hold observations (N, ...), got shape {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise BadInput(f"{name} must be finite, got {int((~x.isfinite()).sum())} values that are "
                       "NaN or infinite")  # fmt: skip
    return x.detach().double().reshape(len(x), -1)
