"""Targets prepared for many evaluations between which no weight changes, as in a run of a chain.

`frozen` is what a kernel's `run` calls once. What comes out has a `value_and_grad` (see
`damc.density`) that needs no graph, with the weights packed once. A type of target that can be
prepared is registered by `freezes`; any module is prepared by `damc.fast.gradients`; everything
else stays as it is, with its own gradient or autograd's.
"""

from __future__ import annotations

__all__ = ["freezes", "frozen"]

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from damc.density import LogProb, Target, WithGradient, as_log_prob
from damc.fast.gradients import has_rule, pullback

T = TypeVar("T")
Freeze = Callable[[Any], WithGradient | None]

_FREEZE: dict[type, Freeze] = {}


def freezes(kind: type[T]) -> Callable[[Freeze], Freeze]:
    """Registers how targets of exactly this type are prepared; None leaves one as it is.

    Subclasses are not prepared: what they override would be lost.
    """

    def register(freeze: Freeze) -> Freeze:
        _FREEZE[kind] = freeze
        return freeze

    return register


def frozen(target: Target) -> LogProb:
    """The target as it is now, ready to be evaluated many times.

    Later changes of its weights may or may not show.

    Args:
        target: of z alone; see `damc.density`.
    """
    freeze = _FREEZE.get(type(target))
    if freeze is None and isinstance(target, nn.Module) and has_rule(target):
        freeze = _network
    prepared = None if freeze is None else freeze(target)
    return as_log_prob(target) if prepared is None else prepared


def _network(net: nn.Module) -> WithGradient | None:
    """A network that is a log-density itself, ``(B, d)`` to ``(B,)``."""
    if hasattr(net, "log_prob") or hasattr(net, "value_and_grad"):
        return None
    evaluate = pullback(net)

    def value_and_grad(z: Tensor) -> tuple[Tensor, Tensor]:
        value, pull = evaluate(z)
        return value, pull(torch.ones_like(value))

    return WithGradient(net, value_and_grad)
