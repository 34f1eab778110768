"""Learners of a latent model: images are drawn, and seen, through its decoder."""

from __future__ import annotations

__all__ = ["LatentLearner", "PosteriorMoves"]

from typing import Any

import torch
from torch import Tensor

from damc.errors import BadInput
from damc.kernels.langevin import Langevin
from damc.learn.learner import Learner


class LatentLearner(Learner):
    """A learner with a `model` whose prior can be drawn from in several ways, its `sources`.

    A subclass has the model, names the sources, the best first, and writes `draw_prior`.
    """

    model: Any  # a LatentModel

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        source: str | None = None,
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Images of the model, ``(n, C, H, W)``.

        Args:
            n: how many.
            source: one of `sources`, the first by default. "energy" is Langevin on the prior from
                N(0, I); "gaussian" is N(0, I) decoded, which shows what the learned prior adds;
                "amortizer", where there is one, is q(z) decoded.
            steps: Langevin moves, where the source makes any.
            generator: source of all randomness.
        """
        z = self.sample_latent(n, source, steps, generator)
        return self.model.decoder(z)  # type: ignore[no-any-return]

    @torch.no_grad()
    def sample_latent(
        self,
        n: int,
        source: str | None = None,
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of the prior by one of the ways of `sample`, ``(n, d)``."""
        source = self.sources[0] if source is None else source
        if source not in self.sources:
            ways = " or ".join(self.sources)
            raise BadInput(f"source of {self.name} must be {ways}, got {source!r}")
        if source == "gaussian":
            weight = next(self.model.decoder.parameters())
            z: Tensor = weight.new_empty(n, self.model.latent_dim).normal_(generator=generator)
            return z
        return self.draw_prior(n, source, steps, generator)

    def draw_prior(
        self, n: int, source: str, steps: int | None, generator: torch.Generator | None
    ) -> Tensor:
        """Latent points of the learned prior, ``(n, d)``, by a source other than "gaussian"."""
        raise NotImplementedError


class PosteriorMoves(Learner):
    """A learner that infers by moves on the posterior: what follows from its `infer`."""

    model: Any  # a LatentModel

    @torch.no_grad()
    def reconstruct(
        self,
        x: Tensor,
        *,
        refine: bool = True,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """g(z) at inferred z, of the shape of x; options are those of `infer`."""
        z = self.infer(x, generator=generator, **options)
        return self.model.decoder(z)  # type: ignore[no-any-return]

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """-log p~(z, x) at an inferred z, ``(B,)``: higher is more anomalous."""
        score: Tensor = -self.model.log_joint(self.infer(x, generator=generator), x)
        return score

    def refine(
        self, x: Tensor, z: Tensor, steps: int, noise: bool, generator: torch.Generator | None
    ) -> Tensor:
        """Where `steps` Langevin moves on p(z | x) lead from z, ``(B, d)``."""
        kernel = Langevin(self.settings.posterior_step_size, noise=noise)
        return kernel.run(z, self.model.posterior(x), generator, steps=steps)[0].z
