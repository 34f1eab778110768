"""A learner in words and plain values: its parts, their sizes, and how it was trained."""

from __future__ import annotations

__all__ = ["count", "describe", "describe_model", "parts_of"]

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.latent import LatentModel

if TYPE_CHECKING:
    from damc.learn.sharing import Shared


def count(parameters: Iterable[Tensor]) -> int:
    """How many numbers a network learns."""
    return sum(p.numel() for p in parameters)


def parts_of(learner: nn.Module) -> dict[str, nn.Module]:
    """The networks that learn, by name; frozen ones, such as EMA copies, are left out."""
    found: dict[str, nn.Module] = {}
    for name, child in learner.named_children():
        inner: dict[str, nn.Module | None] = {name: child}
        if isinstance(child, LatentModel):
            inner = {"decoder": child.decoder, "energy": child.prior.energy}
        elif isinstance(child, Amortizer):
            inner = {"denoiser": child.denoiser, "encoder": child.encoder}
        for key, part in inner.items():
            if part is not None and any(p.requires_grad for p in part.parameters()):
                found[key] = part
    return found


def describe(learner: nn.Module) -> dict[str, str]:
    """The networks of a learner in words, which a run folder keeps of modules of your own."""
    return {
        name: f"{type(part).__name__} with {count(part.parameters()):,} parameters"
        for name, part in parts_of(learner).items()
    }


def describe_model(learner: Shared) -> dict[str, Any]:
    """What a published model says of itself: how to build it, and how it was trained."""
    return {
        "learner": learner.name,
        "config": learner.config,
        "iteration": learner.iteration,
        "parameters": {name: count(p.parameters()) for name, p in parts_of(learner).items()},
        **learner.provenance,
    }
