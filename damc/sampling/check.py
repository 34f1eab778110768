"""What `damc.sample` is given, looked at before anything is computed."""

from __future__ import annotations

__all__ = ["checked", "positive"]

from typing import Any

import torch
from torch import Tensor

from damc.density import LogProb, Target, as_log_prob
from damc.errors import BadInput
from damc.sampling.supports import Support


def positive(**numbers: Any) -> None:
    """Refuses what is not a positive whole number, by its name."""
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(f"{name} must be a positive whole number, got {value!r}")


def checked(
    log_prob: Target, dim: int, bijection: Support | None, generator: torch.Generator
) -> LogProb:
    """The target on unconstrained float64 points, tried out once."""
    function = as_log_prob(log_prob)
    size = dim if bijection is None else bijection.free
    u = torch.randn(8, size, dtype=torch.float64, generator=generator, device=generator.device)
    x = u if bijection is None else bijection(u)[0]
    value: Any = None
    problem: Exception | None = None
    for dtype in (torch.float64, torch.get_default_dtype()):
        try:
            value = function(x.to(dtype).requires_grad_())
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            problem = problem or error
            continue
        break
    else:
        raise BadInput(
            f"log_prob must take points of shape (B, {dim}) in torch operations; on (8, {dim}) it "
            f"raised {type(problem).__name__}: {problem}"
        ) from problem
    if not isinstance(value, Tensor):
        raise BadInput(
            f"log_prob must return a tensor, got {type(value).__name__}: write it in torch "
            "operations instead of numpy's or Python's"
        )
    if value.shape != (8,):
        raise BadInput(
            f"log_prob must return one value for each point, shape (8,) for (8, {dim}), got shape "
            f"{tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise BadInput("log_prob must depend on its points through torch operations")

    def cast(x: Tensor) -> Tensor:
        return function(x.to(dtype)).to(x.dtype)

    plain = function if dtype == torch.float64 else cast
    return plain if bijection is None else bijection.pull_back(plain)
