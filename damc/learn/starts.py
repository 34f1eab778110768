"""Where the chains of an iteration start: at noise, where they last ended, or at an amortizer.

This is what distinguishes the MCMC methods. A start draws ``(B, d)`` points for a batch and is
given the chains' end points afterwards; only persistent ones store them.
"""

from __future__ import annotations

__all__ = [
    "AmortizedStarts",
    "NoiseStarts",
    "PersistentStarts",
    "Starts",
    "Store",
    "batch_places",
    "standard_normal",
]

from typing import Any

import torch
from torch import Tensor, nn

from damc.amortize import Amortizer
from damc.learn.processes import of_all_processes, world
from damc.randomness import batch_rows, normal, normal_like, own_rows, whole_batch


class Starts:
    """Starts without memory; a subclass writes `draw`."""

    def draw(self, x: Tensor, index: Tensor, generator: torch.Generator | None) -> Tensor:
        """Starts ``(B, d)`` of chains for images x ``(B, C, H, W)`` with indices ``(B,)``."""
        raise NotImplementedError

    def keep(self, index: Tensor, z: Tensor) -> None:
        """Stores the chains' end points ``(B, d)``, if the starts have a memory."""

    def state(self) -> dict[str, Any]:
        """What the next draw depends on; empty if nothing."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""


class NoiseStarts(Starts):
    """Fresh N(0, I) every time: short-run chains (Nijkamp et al. 2020, Pang et al. 2020)."""

    def __init__(self, latent_dim: int) -> None:
        self.latent_dim = latent_dim

    def draw(self, x: Tensor, index: Tensor, generator: torch.Generator | None) -> Tensor:
        """Standard normal points, ``(B, d)``."""
        return standard_normal(x, self.latent_dim, generator)


class PersistentStarts(Starts):
    """Where the chain of the same index last ended, and N(0, I) at its first visit.

    Warm starts of ABP (Han et al. 2017) if the index is an image's place in the data set;
    persistent contrastive divergence (Tieleman 2008) if it is the place in the batch. Storage grows
    with the largest index. An image and its mirror image share a chain; a stream of batches, which
    never repeats an index, has no chain to continue. Chains belong to images, not to processes:
    each of several keeps all of them, and so does a run folder.

    A first visit draws what `NoiseStarts` draws, bit for bit; later ones consume as much
    randomness, so that both kinds of learner see the same noise along their chains.
    """

    def __init__(self, latent_dim: int) -> None:
        self.latent_dim = latent_dim
        self.z = torch.empty(0, latent_dim)  # end points, (N, d)
        self.known = torch.empty(0, dtype=torch.bool)  # which indices were visited, (N,)

    def draw(self, x: Tensor, index: Tensor, generator: torch.Generator | None) -> Tensor:
        """The last end points of these chains, ``(B, d)``."""
        noise = standard_normal(x, self.latent_dim, generator)
        self._grow(index, noise)
        place = index.to(self.z.device)
        return torch.where(self.known[place, None], self.z[place], noise)

    def keep(self, index: Tensor, z: Tensor) -> None:
        """Stores the end points of these chains."""
        z = of_all_processes(z.detach())
        if world() > 1:
            index = of_all_processes(index.to(z.device)).to(index.device)
        self._grow(index, z)
        place = index.to(self.z.device)
        self.z[place] = z
        self.known[place] = True

    def state(self) -> dict[str, Any]:
        """Every chain's end point, and which chains have one."""
        return {"z": self.z, "known": self.known}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues the chains of an earlier `state`."""
        self.z, self.known = state["z"].clone(), state["known"].clone()

    def _grow(self, index: Tensor, like: Tensor) -> None:
        """Makes space up to the largest index, on the device and in the type of the chains."""
        self.z, self.known = self.z.to(like), self.known.to(like.device)
        missing = int(index.max()) + 1 - len(self.z)
        if missing > 0:
            self.z = torch.cat([self.z, self.z.new_zeros(missing, self.z.shape[1])])
            self.known = torch.cat([self.known, self.known.new_zeros(missing)])


class AmortizedStarts(Starts):
    """Samples of an amortizer: q(z | x), or q(z) if not `conditional`.

    Args:
        amortizer: the sampler, in Algorithm 1 the EMA copy of the one that learns.
        solver: how it is sampled.
        steps: evaluations of its denoiser.
        conditional: whether it is given the images.
    """

    def __init__(
        self, amortizer: Amortizer, solver: str, steps: int, *, conditional: bool = True
    ) -> None:
        self.amortizer, self.conditional = amortizer, conditional
        self.options: dict[str, Any] = {"solver": solver, "steps": steps}

    def draw(self, x: Tensor, index: Tensor, generator: torch.Generator | None) -> Tensor:
        """Samples for the images, ``(B, d)``."""
        n, context = (None, x) if self.conditional else (len(x), None)
        return self.amortizer.sample(n, context, generator=generator, **self.options)


class Store(nn.Module):
    """The latest points of a stream, kept with the weights, to draw from again.

    Args:
        size: how many are kept.
        latent_dim: d.
    """

    points: Tensor
    written: Tensor

    def __init__(self, size: int, latent_dim: int) -> None:
        super().__init__()
        self.register_buffer("points", torch.zeros(size, latent_dim))
        self.register_buffer("written", torch.zeros((), dtype=torch.long))

    def add(self, z: Tensor) -> None:
        """Stores points z ``(B, d)`` in place of the oldest, those of all processes in each."""
        z = of_all_processes(z.detach())[-len(self.points) :]
        place = (self.written + torch.arange(len(z), device=z.device)) % len(self.points)
        self.points[place] = z.to(self.points)
        self.written += len(z)

    def spread(self, factor: Tensor, generator: torch.Generator | None) -> None:
        """Adds L w with w ~ N(0, I) to every point, the same in each process."""
        noise = normal_like(self.points, whole_batch(generator))
        self.points += noise @ factor.to(self.points).mT

    def clear(self) -> None:
        """Forgets all points."""
        self.written.zero_()

    @property
    def known(self) -> Tensor:
        """Those that were written so far, ``(N, d)``."""
        return self.points[: int(self.written)]

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n of the stored points, ``(n, d)``, with replacement."""
        share = torch.rand(n, generator=generator, device=self.points.device)
        known = self.written.clamp(max=len(self.points))
        return self.points[(share * known).long().clamp(max=len(self.points) - 1)]

    def draw_rows(self, n: int, generator: torch.Generator | None) -> Tensor:
        """A stored point for each of this process's n rows of a batch, ``(n, d)``."""
        every = self.draw(batch_rows(n, generator), whole_batch(generator))
        return own_rows(every, generator)


def batch_places(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Which rows of the whole batch this process's images x ``(B, ...)`` are, ``(B,)``."""
    return own_rows(torch.arange(batch_rows(len(x), generator)), generator)


def standard_normal(like: Tensor, latent_dim: int, generator: torch.Generator | None) -> Tensor:
    """A point of N(0, I) for every row of a batch, ``(B, d)``, in its type and on its device."""
    return normal(len(like), latent_dim, generator=generator, dtype=like.dtype, device=like.device)
