"""Algorithm 1: learn a decoder, an energy prior and an amortized sampler together.

Yu, Zhu, Xie, Ma, Gao, Zhu and Wu, "Learning Energy-Based Prior Model with Diffusion-Amortized
MCMC", NeurIPS 2023. Line by line in `algorithm_1`.
"""

from __future__ import annotations

__all__ = [
    "DAMC",
    "DAMCSettings",
    "GaussianDAMC",
    "PaperDAMC",
    "VANILLA_STEPS",
    "algorithm_1",
]

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from damc.amortize import EMA, Amortizer
from damc.errors import BadInput
from damc.latent import LatentModel, check_encoder
from damc.learn.curvature import posterior_factor
from damc.learn.learner import Learner
from damc.learn.optimizers import LearningRate
from damc.learn.parts import (
    Chain,
    Metrics,
    decoder_step,
    energy_step,
    prior_sampler_step,
    sampler_step,
)
from damc.learn.presets import Recipe
from damc.learn.prior import RefinedMixture
from damc.learn.settings import (
    AmortizerSettings,
    ChainSettings,
    PriorSettings,
    StartSettings,
    StoreSettings,
)
from damc.learn.sources import (
    Draw,
    Infer,
    amortizer_draw,
    amortizer_inference,
    first_guess,
    noise_inference,
)
from damc.learn.stages import Stages
from damc.learn.starts import AmortizedStarts, Store, standard_normal
from damc.learn.warm_up import autoencoder_steps, spread_of
from damc.nets.networks import Networks
from damc.nets.principal import begin_as_pca, check_layers
from damc.randomness import batch_rows

VANILLA_STEPS = 40
"""Noiseless posterior moves from N(0, I), as the paper's ablation infers without an amortizer."""


REFITS = (0.25, 0.5, 0.75)
"""Shares of the iterations with chains after which the mixture under q(z) and the factor of
posteriors are fitted again."""

REFIT_FROM = 40
"""Fewest iterations with chains for which that pays: a fit costs as much as several of them."""

EARLY_FITS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of the warm-up after which both are fitted to its codes, so that a model that is looked
at, or stopped, before its chains begin has samples and reconstructions."""

EARLY_FITS_FROM = 1000
"""Fewest iterations of the warm-up for which those are made: shorter ones soon end."""

WARM_RATE = 0.7
"""How far down its cosine the learning rate of the warm-up gets; that of the chains goes on."""

_IMAGES_EACH = 40  # images for each principal component of a linear start

CENTERED = {"center": True, "velocity": True, "frequency": 0.05}
"""Options of a centered amortizer, which begins as a Gaussian around m(x)."""


@dataclass(frozen=True)
class DAMCSettings(ChainSettings, PriorSettings, AmortizerSettings, StartSettings, StoreSettings):
    """Every choice of Algorithm 1, the paper's code as defaults unless the comment says otherwise.

    docs/conventions.md says where the paper and its code differ.
    """

    centered: bool = False  # q(z | x) around a learned mean, moves in posterior standard deviations
    linear_start: bool = False  # networks begin as principal components of the first images
    decoder_penalty: float = 0.0  # weight of its dense layers' squared weights beside its error
    warm_up: float = 0.0  # share of the horizon that auto-encodes, before any chain runs
    warm_up_batch: int = 64  # images of one update of the auto-encoder
    warm_up_rate: float = 7e-4
    warm_up_variational: bool = False  # its codes are draws, whose spread is learned for each image


def algorithm_1(
    x: Any,
    index: Tensor,
    generator: torch.Generator | None,
    *,
    posterior: Chain,
    prior: Chain | None,
    prior_starts: Callable[[Any, Tensor, torch.Generator | None], Tensor],
    update_decoder: Callable[[Any, Tensor], Metrics] | None,
    update_energy: Callable[[Tensor, Tensor], Metrics],
    update_amortizer: Callable[[Any, Tensor, torch.Generator | None], Metrics],
) -> Metrics:
    """One iteration of the paper's Algorithm 1 on a minibatch x.

    The three updates depend on the samples alone, so their order is free: the energy comes last
    because without an energy (``prior = None``) the prior chains are then simply left out.

    Args:
        x: the minibatch, ``(B, ...)``.
        index: its places in the data set, ``(B,)``.
        generator: source of all randomness.
        posterior: chains on p(z | x), whose starts are samples of q(z | x).
        prior: chains on p(z), or None for a Gaussian prior.
        prior_starts: where those start, from x and the posterior's starts.
        update_decoder: beta, from x and z+; None for a frozen decoder.
        update_energy: alpha, from z+ and z-.
        update_amortizer: phi, M steps towards z+.
    """
    # Draw DAMC samples.
    z0 = posterior.starts.draw(x, index, generator)

    # Posterior Langevin update, of z+.
    z_pos, info = posterior.move(x, z0, generator)
    metrics = {
        "displacement": info.displacement,
        "log_prob_start": info.log_prob[0],
        "log_prob": info.log_prob[-1],
        "z_norm": z_pos.square().mean(),
    }

    # Update beta, the decoder.
    if update_decoder is not None:
        metrics |= update_decoder(x, z_pos)

    # Update phi, the amortizer.
    metrics |= update_amortizer(x, z_pos, generator)

    # Prior Langevin update, of z-; update alpha, the energy.
    if prior is not None:
        z_neg, _ = prior.move(x, prior_starts(x, z0, generator), generator)
        metrics |= update_energy(z_pos, z_neg)
    return metrics


class DAMC(Learner):
    """Diffusion-amortized MCMC learning of a latent energy-based model.

    Posterior and prior chains start at the amortizer's EMA copy, the decoder and the energy learn
    from where they end, and the amortizer learns the ends of the posterior chains. Without an
    energy in the model it is `GaussianDAMC`. With `warm_up` the first iterations have no chains.

    Args:
        model: decoder, energy prior and sigma.
        amortizer: q(z | x) and q(z); its encoder embeds images.
        settings: the choices of Algorithm 1.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "damc"
    about: ClassVar[str] = "energy prior and amortized sampler, learned together (Algorithm 1)"
    settings_type: ClassVar[Any] = DAMCSettings
    inference: ClassVar[str | None] = "chain"
    score: ClassVar[str | None] = "joint"
    copies: ClassVar[Mapping[str, str]] = {"target": "amortizer"}
    scratch: ClassVar[tuple[str, ...]] = ("store",)
    with_energy: ClassVar[bool] = True

    def __init__(
        self,
        model: LatentModel,
        amortizer: Amortizer,
        settings: DAMCSettings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or DAMCSettings(sigma=model.sigma)
        super().__init__(s, networks, model)
        _check_center(amortizer, s)
        if s.linear_start and amortizer.center is not None and amortizer.encoder is not None:
            check_layers(amortizer.encoder, amortizer.center.mean, model.decoder)
        if s.store_energy_updates and not s.store:
            raise BadInput(
                "store must be positive for store_energy_updates, "
                f"got {s.store} and {s.store_energy_updates}"
            )
        self.amortizer = amortizer
        self.ema = EMA(amortizer, s.ema_rate)
        self.target: Amortizer = self.ema.module
        center = amortizer.center if s.warm_up_variational else None
        self.spread = None if center is None else spread_of(center)
        self.store = Store(s.store, model.latent_dim) if s.store else None
        self.prior_sampler = (
            None
            if self.store is None
            else RefinedMixture.of(self.store, s.store_components, s.store_scales)
        )

        starts = partial(AmortizedStarts, self.target, s.start_solver, s.start_steps)
        self.posterior_chain = Chain(starts(), s.posterior_moves, model.posterior)
        self.prior_chain = Chain(starts(conditional=False), s.prior_moves, model.prior_of)
        self.stages = Stages(s.warm_up, s.horizon)
        begin = self.stages.begin
        chains = s.horizon - begin
        self._refits = {begin + int(share * chains) for share in REFITS if chains >= REFIT_FROM}
        self._refits |= {int(share * begin) for share in EARLY_FITS if begin >= EARLY_FITS_FROM}
        self._add_optimizers()

    def _add_optimizers(self) -> None:
        """Those of the chains' stage; with a warm-up, that of the auto-encoder beside them."""
        s, model, q = self.settings, self.model, self.amortizer
        add = partial(self.optimizers.add, betas=s.betas)
        rate = partial(self.stages.rate, decay=s.decay, stage=2)
        add("decoder", model.decoder.parameters(), rate(s.decoder_rate))
        if model.prior.energy is not None:
            add("energy", model.prior.energy.parameters(), rate(s.energy_rate))
        decay = s.amortizer_weight_decay
        add("amortizer", q.parameters(), rate(s.amortizer_rate), weight_decay=decay)
        if self.prior_sampler is not None:
            add("prior_sampler", self.prior_sampler.parameters(), rate(s.store_rate))
        if s.warm_up:
            learned = (model.decoder, q.encoder, q.center, self.spread)
            weights = [p for m in learned if m is not None for p in m.parameters()]
            horizon = max(round(self.stages.begin / WARM_RATE), 1)
            add("autoencoder", weights, LearningRate(s.warm_up_rate, s.decay, horizon))

    @classmethod
    def settings_from(cls, recipe: Recipe) -> DAMCSettings:
        """All of the recipe, with DAMC's own choices."""
        return replace(PaperDAMC.settings_from(recipe), **recipe.damc)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> Self:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma, energy=cls.with_energy)
        options = CENTERED if settings.centered else {}
        return cls(model, networks.build_amortizer(**options), settings, networks)

    @property
    def initial_images(self) -> int:
        """Enough for the principal components, with a linear start."""
        return _IMAGES_EACH * self.model.latent_dim if self.settings.linear_start else 0

    def initialize(self, x: Tensor) -> None:
        """Encoder, center and decoder begin as principal components of images x."""
        assert self.amortizer.encoder is not None and self.amortizer.center is not None
        begin_as_pca(self.amortizer.encoder, self.amortizer.center.mean, self.model.decoder, x)
        self.target.load_state_dict(self.amortizer.state_dict())

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, model = self.settings, self.model
        if self.iteration == self.stages.begin or self.iteration in self._refits:
            self._fit_again(x, generator)
        if self.iteration < self.stages.begin:
            return self.warm_up(x, generator)
        chain, center = self.posterior_chain, self.target.center
        if center is not None and chain.kernel.scale is not center.factor:
            chain.kernel = replace(chain.kernel, scale=center.factor)
        metrics = algorithm_1(
            x,
            index,
            generator,
            posterior=self.posterior_chain,
            prior=None if model.prior.energy is None else self.prior_chain,
            prior_starts=self.prior_starts,
            update_decoder=partial(
                decoder_step,
                model,
                update=self.update,
                updates=s.decoder_updates,
                penalty=s.decoder_penalty,
            ),
            update_energy=partial(
                energy_step, model.prior.energy, update=self.update, penalty=s.energy_penalty
            ),
            update_amortizer=self.update_amortizer,
        )
        if self.store is not None and model.prior.energy is not None:
            for _ in range(s.store_energy_updates):
                metrics |= self._update_energy_from(self.store, x, generator)
        self._count()
        return metrics

    def _update_energy_from(
        self, store: Store, x: Tensor, generator: torch.Generator | None
    ) -> Metrics:
        """One more step of the energy, with stored samples as z+ and prior chains of its own."""
        z_pos = store.draw_rows(len(x), generator)
        starts = self.prior_starts(x, z_pos, generator)
        z_neg, _ = self.prior_chain.move(x, starts, generator)
        energy, penalty = self.model.prior.energy, self.settings.energy_penalty
        return energy_step(energy, z_pos, z_neg, self.update, penalty=penalty)

    def warm_up(self, x: Tensor, generator: torch.Generator | None) -> Metrics:
        """Decoder, encoder and the center of q(z | x) learn as an auto-encoder."""
        s = self.settings
        updates = max(1, batch_rows(len(x), generator) // s.warm_up_batch)
        z, metrics = autoencoder_steps(
            self.model,
            self.amortizer,
            x,
            self.update,
            updates=updates,
            penalty=s.decoder_penalty,
            spread=self.spread,
            generator=generator,
        )
        if self.store is not None:
            self.store.add(z)
        self._count()
        return metrics

    def _fit_again(self, x: Tensor, generator: torch.Generator | None) -> None:
        """The factor of posteriors and the mixture under q(z) follow the decoder and the samples.

        Until chains run these are codes of the warm-up; then each is spread as its posterior is,
        unless it is a draw.
        """
        first = self.iteration == self.stages.begin
        if self.amortizer.center is not None:
            with torch.no_grad():
                z = self.amortizer.center(self.amortizer.embed(x))
            factor = posterior_factor(self.model, z, generator)
            for q in (self.amortizer, self.target):
                q.center.factor.copy_(factor)  # type: ignore[union-attr]
            if first and self.store is not None and self.spread is None:
                self.store.spread(factor, generator)
        if self.store is not None and self.prior_sampler is not None:
            self.prior_sampler.fit(self.store, anew=self.iteration <= self.stages.begin)
            if first:
                self.store.clear()

    def _count(self) -> None:
        self.iteration += 1
        if self.iteration % self.settings.ema_every == 0:
            self.ema.update()

    def update_amortizer(
        self, x: Tensor, z_pos: Tensor, generator: torch.Generator | None
    ) -> Metrics:
        """M steps of q(z | x) and q(z) towards z+, and of a q(z) of its own towards the store."""
        s = self.settings
        metrics = sampler_step(
            self.amortizer,
            x,
            z_pos,
            generator,
            update=self.update,
            updates=s.updates,
            encoder_updates=s.encoder_updates,
            p_uncond=s.p_uncond,
            unconditional=s.unconditional,
        )
        if self.store is not None and self.prior_sampler is not None:
            self.store.add(z_pos)
            metrics |= prior_sampler_step(
                self.prior_sampler,
                self.store,
                generator,
                update=self.update,
                updates=s.store_updates,
                batch=s.store_batch,
            )
        return metrics

    def prior_starts(self, x: Tensor, z0: Tensor, generator: torch.Generator | None) -> Tensor:
        """Starts of the prior chains: at z0 ~ q(z | x), or at q(z); and as many at N(0, I)."""
        s = self.settings
        if s.prior_starts == "noise":
            return standard_normal(x, self.model.latent_dim, generator)
        if s.prior_starts == "unconditional":
            z0 = self.prior_chain.starts.draw(x, torch.arange(len(x)), generator)
        if s.noise_negatives:
            z0 = torch.cat([z0, standard_normal(x, self.model.latent_dim, generator)])
        return z0

    def draws(self) -> Mapping[str, Draw]:
        """q(z), Langevin on the energy if there is one, and N(0, I)."""
        own = self.prior_sampler
        q = amortizer_draw(self.amortizer) if own is None else lambda n, _, g: own.sample(n, g)
        return {"amortizer": q, **super().draws()}

    def inferences(self) -> Mapping[str, Infer]:
        """q(z | x) and moves on the posterior, or those moves from N(0, I)."""
        model, q, s = self.model, self.amortizer, self.settings
        amortized = amortizer_inference(model, q, s.posterior_step_size, s.test_steps)
        vanilla = noise_inference(model, s.posterior_step_size, VANILLA_STEPS, q.center)
        return {"amortizer": amortized, "gaussian": vanilla}

    @property
    def amortized(self) -> bool:
        """Always: q(z | x) is the first guess."""
        return True

    def check_networks(self, x: Tensor) -> None:
        """Checks the encoder as well."""
        super().check_networks(x)
        check_encoder(self.amortizer, x)

    def first_guess(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """z ~ q(z | x) by few steps, and a single posterior move."""
        step_size = self.settings.posterior_step_size
        return first_guess(self.model, self.amortizer, x, step_size, generator)


def _check_center(q: Amortizer, s: DAMCSettings) -> None:
    """Refuses settings that need a center where there is none, or a q(z) beside a center."""
    if s.warm_up_variational and not s.warm_up:
        raise BadInput("warm_up must be positive for warm_up_variational, got 0")
    if q.center is None:
        if s.warm_up:
            raise BadInput(
                "the amortizer must have a center to warm up, got none: set centered, or warm_up "
                "to 0"
            )
        if s.linear_start:
            raise BadInput("the amortizer must have a center for linear_start, got none")
        return
    if not s.store or s.prior_starts == "unconditional":
        raise BadInput(
            "a centered amortizer has no q(z): store must be positive and prior_starts not "
            f"'unconditional', got {s.store} and {s.prior_starts!r}"
        )
    if s.p_uncond or s.unconditional == "both":
        raise BadInput(
            "a centered amortizer has no q(z): p_uncond must be 0 and unconditional 'share', "
            f"got {s.p_uncond} and {s.unconditional!r}"
        )


class PaperDAMC(DAMC):
    """Algorithm 1 with the paper's choices where a preset has others.

    On a preset of the paper's size it is `DAMC`; on a small one it ignores `Recipe.damc`.
    """

    name: ClassVar[str] = "damc-paper"
    about: ClassVar[str] = "DAMC with the paper's choices where a small preset has others"

    @classmethod
    def settings_from(cls, recipe: Recipe) -> DAMCSettings:
        """All of the recipe; chains that start at the amortizer's samples may be shorter."""
        groups = (ChainSettings, PriorSettings, AmortizerSettings, StartSettings)
        steps = recipe.warm_posterior_steps or recipe.posterior_steps
        return DAMCSettings(**{**recipe.block(*groups), "posterior_steps": steps})


class GaussianDAMC(DAMC):
    """Algorithm 1 under the prior N(0, I), the paper's ablation DAMC-G.

    It is DAMC with the energy fixed at zero, number for number, and without prior chains.
    """

    name: ClassVar[str] = "damc-g"
    about: ClassVar[str] = "DAMC with a Gaussian prior: no energy is learned"
    with_energy: ClassVar[bool] = False
