"""Fully connected networks: one builder, shared by energies, decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from damc.errors import BadInput

__all__ = ["ACTIVATIONS", "SkipMLP", "activation_layer", "mlp"]

ACTIVATIONS: dict[str, Callable[[float], nn.Module]] = {
    "lrelu": lambda slope: nn.LeakyReLU(slope),
    "relu": lambda slope: nn.ReLU(),
    "gelu": lambda slope: nn.GELU(),
    "silu": lambda slope: nn.SiLU(),
    "tanh": lambda slope: nn.Tanh(),
}
"""Activations between layers, by name; only "lrelu" uses `slope`."""


def activation_layer(name: str, slope: float = 0.2) -> nn.Module:
    """A new activation layer: one of "lrelu", "relu", "gelu", "silu", "tanh"."""
    if name not in ACTIVATIONS:
        raise BadInput(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    return ACTIVATIONS[name](slope)


def mlp(
    sizes: Sequence[int],
    activation: str = "lrelu",
    last: str | None = None,
    slope: float = 0.2,
) -> nn.Sequential:
    """Linear layers `sizes[0] -> sizes[1] -> ... -> sizes[-1]` with an activation between them.

    Args:
        sizes: at least two positive sizes, input and output included.
        activation: name of the activation after every layer but the last.
        last: name of the activation after the last layer; none by default.
        slope: negative slope of "lrelu".

    Returns:
        A module from `(..., sizes[0])` to `(..., sizes[-1])`, with torch's default initial weights.

    >>> [tuple(p.shape) for p in mlp([8, 200, 1]).parameters()]
    [(200, 8), (200,), (1, 200), (1,)]
    """
    if len(sizes) < 2:
        raise BadInput(f"sizes must be at least an input and an output size, got {tuple(sizes)}")
    check_positive(sizes=sizes)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation_layer(activation, slope)]
    layers.pop()
    if last is not None:
        layers.append(activation_layer(last, slope))
    return nn.Sequential(*layers)


def check_positive(**named: int | Sequence[int]) -> None:
    """Raise `BadInput`, by name, unless all numbers are positive integers."""
    for name, value in named.items():
        numbers = [value] if isinstance(value, int) else list(value)
        if any(not isinstance(n, int) or n < 1 for n in numbers):
            raise BadInput(f"{name} must be positive whole numbers, got {value}")


class SkipMLP(nn.Module):
    """Three hidden layers with ReLU, and an output layer that sees the input beside them.

    Args:
        inputs: size of the input.
        width: size of the hidden layers.
        outputs: size of the output.
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.body = mlp((inputs, width, width, width), "relu", last="relu")
        self.head = nn.Linear(width + inputs, outputs)

    def forward(self, z: Tensor) -> Tensor:
        """``(B, outputs)`` of z ``(B, inputs)``."""
        y: Tensor = self.head(torch.cat([self.body(z), z], 1))
        return y
