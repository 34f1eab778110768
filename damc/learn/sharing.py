"""How a learner is described, saved and published: as text, in a folder, on the Hub."""

from __future__ import annotations

__all__ = ["Shared", "count", "describe"]

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.hub.client import upload
from damc.hub.published import write_model
from damc.latent import LatentModel


class Shared(nn.Module):
    """The part of every `Learner` that describes it, saves it and publishes it.

    Attributes:
        name: of the method.
        copies: submodules that follow another one, such as an EMA copy: training needs them, and
            a published model does not.
        scratch: submodules that only training needs, such as stored samples.
        iteration: learning updates done.
        provenance: how it was trained, plain values: data, settings, command, results.
    """

    name: ClassVar[str]
    copies: ClassVar[Mapping[str, str]] = {}
    scratch: ClassVar[tuple[str, ...]] = ()
    iteration: int

    def __init__(self) -> None:
        super().__init__()
        self.iteration = 0
        self.provenance: dict[str, Any] = {}

    @property
    def config(self) -> dict[str, Any]:
        """Plain values that say how to build it again."""
        raise NotImplementedError

    def save(self, folder: str | Path, *, bits: int = 32) -> Path:
        """Writes the model into a folder that `damc.load` reads: weights, settings, a card.

        What only training needs (optimizers, EMA copies) stays out; a run folder has it.

        Args:
            folder: the folder, made if it is not there.
            bits: of a stored weight: 32, 16 or 8.
        """
        return write_model(folder, self.published_state(), describe_model(self), bits=bits)

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        message: str | None = None,
        token: str | None = None,
    ) -> str:
        """Uploads the model to the Hugging Face Hub with a generated card; returns its address.

        Args:
            repository: "owner/name"; it is made if it is not there.
            private: make it private.
            message: of the commit.
            token: of the Hub; by default the one you logged in with.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return upload(folder, repository, private=private, message=message, token=token)

    def published_state(self) -> dict[str, Tensor]:
        """The weights without those of `copies` and `scratch`."""
        left_out = tuple(f"{name}." for name in (*self.copies, *self.scratch))
        state: dict[str, Tensor] = self.state_dict()
        return {k: t for k, t in state.items() if not left_out or not k.startswith(left_out)}

    def load_published(self, state: Mapping[str, Tensor]) -> None:
        """Takes the weights of `published_state`; the copies start where the others are."""
        own = tuple(f"{name}." for name in self.scratch)
        full = {k: t for k, t in self.state_dict().items() if own and k.startswith(own)} | dict(
            state
        )
        for copy, of in self.copies.items():
            start = f"{of}."
            full |= {
                f"{copy}.{k[len(start) :]}": t for k, t in state.items() if k.startswith(start)
            }
        self.load_state_dict(full)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {count(m.parameters()):,}" for name, m in parts_of(self).items())
        total = count(p for p in self.parameters() if p.requires_grad)
        return f"{type(self).__name__}(iteration {self.iteration:,}; {total:,} parameters: {parts})"


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
