"""Learners of the MCMC family that also distill an amortizer from where their chains end."""

from __future__ import annotations

__all__ = ["AmortizedLearner"]

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from damc.amortize import Amortizer
from damc.errors import BadInput
from damc.latent import LatentModel
from damc.learn.chains import ChainLearner
from damc.learn.learner import Metrics
from damc.learn.starts import standard_normal

if TYPE_CHECKING:
    from damc.nets.networks import Networks

Self = TypeVar("Self", bound="AmortizedLearner")

_VANILLA_STEPS = 40
"""Noiseless posterior moves from N(0, I), as the paper's ablation infers without an amortizer."""

_QUICK: dict[str, Any] = {"solver": "multistep", "steps": 10}
"""How q(z | x) is drawn at first sight: a detector looks several times at thousands of images."""


class AmortizedLearner(ChainLearner):
    """A `ChainLearner` with an amortizer q(z | x), q(z) that samples and infers for it.

    Args:
        model: decoder, energy prior and sigma.
        amortizer: q(z | x) and q(z); its encoder embeds images.
        settings: of the learner's `settings_type`.
        networks: the description from which the networks were built, kept in `config`.
    """

    def __init__(
        self,
        model: LatentModel,
        amortizer: Amortizer,
        settings: Any = None,
        networks: Networks | None = None,
    ) -> None:
        super().__init__(model, settings, networks)
        s = self.settings
        self.amortizer = amortizer
        decay = {"weight_decay": s.amortizer_weight_decay}
        self.learn("amortizer", amortizer, s.amortizer_rate, torch.optim.AdamW, **decay)

    @classmethod
    def build(cls: type[Self], networks: Networks, settings: Any) -> Self:
        model = networks.build_model(settings.sigma, energy=cls.with_energy)
        return cls(model, networks.build_amortizer(), settings, networks)

    def update_phi(
        self, x: Tensor, z: Tensor, updates: int, generator: torch.Generator | None
    ) -> Metrics:
        """`updates` steps of the amortizer towards points z ``(B, d)`` of images x.

        With the setting `encoder_updates` the encoder learns in the last ones only, and the
        others share one pass through it.
        """
        s, q = self.settings, self.amortizer
        shares = (s.p_uncond,) if s.unconditional == "share" else (0.0, 1.0)
        alone = updates - min(updates, getattr(s, "encoder_updates", None) or updates)
        with torch.no_grad():
            known = q.embed(x) if alone else None
        for k in range(updates):
            e = known if k < alone else None
            loss = sum(
                (q.loss(z, x, p_uncond=p, embedded=e, generator=generator) for p in shares),
                start=z.new_zeros(()),
            )
            norm = self.update("amortizer", loss)
        return {"amortizer_loss": loss.detach(), "amortizer_gradient": norm}

    @property
    def sources(self) -> tuple[str, ...]:
        return ("amortizer", *super().sources)

    def draw_prior(
        self, n: int, source: str, steps: int | None, generator: torch.Generator | None
    ) -> Tensor:
        if source == "amortizer":
            return self.amortizer.sample(n, generator=generator)
        return super().draw_prior(n, source, steps, generator)

    def infer(
        self,
        x: Tensor,
        *,
        steps: int | None = None,
        noise: bool = False,
        source: str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of images, ``(B, d)``: q(z | x), then `steps` posterior moves.

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            steps: the settings' `test_steps` by default, 40 from N(0, I); 0 leaves the start as it
                is.
            noise: False refines to the posterior's nearest mode (as the authors' evaluation
                does), True samples.
            source: where to start: "amortizer" by default, if it has learned anything yet, or
                "gaussian" for N(0, I), which shows what inference would be without it.
            generator: source of all randomness.
        """
        if source is None:
            source = "amortizer" if "amortizer" in self.sources else "gaussian"
        if source == "amortizer":
            z, moves = self.amortizer.sample(x=x, generator=generator), self.settings.test_steps
        elif source == "gaussian":
            z, moves = standard_normal(x, self.model.latent_dim, generator), _VANILLA_STEPS
        else:
            raise BadInput(f"source of inference must be amortizer or gaussian, got {source!r}")
        return self.refine(x, z, moves if steps is None else steps, noise, generator)

    @torch.no_grad()
    def reconstruct(
        self,
        x: Tensor,
        *,
        refine: bool = True,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """g(z) at inferred z; unless `refine`, at z ~ q(z | x) after a single posterior move, once
        there is a q to speak of."""
        if refine or "amortizer" not in self.sources:
            return super().reconstruct(x, generator=generator, **options)
        z = self.amortizer.sample(x=x, generator=generator, **_QUICK)
        return self.model.decoder(self.refine(x, z, 1, False, generator))  # type: ignore[no-any-return]
