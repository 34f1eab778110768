"""Unnormalized log-densities: what the chains move on.

A target is any callable ``z -> log p~(z)`` from points ``(B, d)`` to values ``(B,)``, or
``(z, x) -> log p~(z | x)`` with a context ``x`` of the same batch size. Distributions of
`torch.distributions` and modules serve as they are. Nothing here is normalized.

A target may offer its gradient, too: a method ``value_and_grad(z) -> (values (B,), gradients
(B, d))``, or ``value_and_grad(z, x)`` of a conditional one. Every kernel then uses it instead of
autograd; this is the only thing that a target is ever asked for beside its log-density.
"""

from __future__ import annotations

__all__ = [
    "LogProb",
    "Target",
    "WithGradient",
    "as_log_prob",
    "product",
    "tempered",
    "value_and_grad",
]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput

LogProb = Callable[[Tensor], Tensor]
Target = Any  # a callable (z) or (z, x) -> (B,), or an object with such a `log_prob`


@dataclass(frozen=True)
class WithGradient:
    """A log-density with its own gradient.

    Args:
        log_prob: log p~(z), ``(B, d)`` to ``(B,)``.
        value_and_grad: log p~(z) and its gradient, ``(B,)`` and ``(B, d)``.
    """

    log_prob: Callable[..., Tensor]
    value_and_grad: Callable[..., tuple[Tensor, Tensor]]

    def __call__(self, *z_and_x: Tensor) -> Tensor:
        return self.log_prob(*z_and_x)


def as_log_prob(target: Target, x: Tensor | None = None) -> LogProb:
    """Any target as a function of z alone, with its context (if any) fixed.

    A gradient that the target offers is kept.

    Args:
        target: a callable, a module, or an object with a `log_prob` method
            (for example a `torch.distributions.Distribution`).
        x: the context of a conditional target, one row for each chain, ``(B, ...)``.

    Example:
        >>> normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> as_log_prob(normal)(torch.zeros(3, 2)).shape
        torch.Size([3])
    """
    log_prob = getattr(target, "log_prob", target)
    if not callable(log_prob):
        raise BadInput(
            f"target must be a callable z -> log p(z) or have a log_prob method, got {target!r}"
        )
    own = getattr(target, "value_and_grad", None)
    if x is None:
        return log_prob if own is None or log_prob is target else WithGradient(log_prob, own)
    if own is None:
        return lambda z: log_prob(z, x)
    return WithGradient(lambda z: log_prob(z, x), lambda z: own(z, x))


def tempered(target: Target, temperature: float) -> Callable[..., Tensor]:
    """The density to the power 1 / temperature: flatter above 1, sharper below.

    With ``temperature = 1`` this is the target itself.
    """
    if not temperature > 0:
        raise BadInput(f"temperature must be positive, got {temperature}")
    log_prob: Callable[..., Tensor] = as_log_prob(target)
    own = getattr(log_prob, "value_and_grad", None)
    if own is None:
        return lambda *z_and_x: log_prob(*z_and_x) / temperature

    def gradient(*z_and_x: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = own(*z_and_x)
        return value / temperature, grad / temperature

    return WithGradient(lambda *z_and_x: log_prob(*z_and_x) / temperature, gradient)


def product(*targets: Target) -> Callable[..., Tensor]:
    """The product of several densities: their log-densities add up.

    Example:
        >>> shifted = product(lambda z: -z.square().sum(1) / 2, lambda z: z.sum(1))
        >>> shifted(torch.ones(1, 2))
        tensor([1.])
    """
    if not targets:
        raise BadInput("product needs at least one target, got none")
    log_probs: list[Callable[..., Tensor]] = [as_log_prob(target) for target in targets]

    def total(*z_and_x: Tensor) -> Tensor:
        return sum((f(*z_and_x) for f in log_probs[1:]), log_probs[0](*z_and_x))

    if not any(hasattr(f, "value_and_grad") for f in log_probs):
        return total

    def gradient(z: Tensor, *x: Tensor) -> tuple[Tensor, Tensor]:
        parts = [value_and_grad(as_log_prob(f, *x), z) for f in log_probs]
        values, grads = zip(*parts, strict=True)
        return torch.stack(values).sum(0), torch.stack(grads).sum(0)

    return WithGradient(total, gradient)


def value_and_grad(target: Target, z: Tensor) -> tuple[Tensor, Tensor]:
    """The log-density and its gradient at every point, in one forward and one backward pass.

    Only the gradient to z is computed, never one to the weights behind the target, and no graph
    outlives the call. A target's own `value_and_grad(z)` is used instead of autograd.

    Args:
        target: the target, of z alone.
        z: points, ``(B, d)``.

    Returns:
        The values ``(B,)`` and the gradients ``(B, d)``, both detached.
    """
    log_prob = as_log_prob(target)
    own = getattr(log_prob, "value_and_grad", None)
    if own is not None:
        value, grad = own(z)
        _check_shape(value, z)
        if grad.shape != z.shape:
            raise BadInput(
                f"the target's value_and_grad must give gradients of shape {tuple(z.shape)}, "
                f"got {tuple(grad.shape)}"
            )
        # Lower precision inside stays inside, and so does a graph.
        return value.detach().to(z.dtype), grad.detach().to(z.dtype)
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = log_prob(z)
        _check_shape(value, z)
        if not value.requires_grad:
            raise BadInput("the target's value does not depend on z through torch operations")
        (grad,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), grad


def _check_shape(value: Tensor, z: Tensor) -> None:
    if value.shape != z.shape[:1]:
        raise BadInput(
            f"target must give one log-density for each point, shape ({z.shape[0]},) for "
            f"{tuple(z.shape)}, got shape {tuple(value.shape)}"
        )
