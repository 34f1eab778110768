"""Algorithm 1: learn a decoder, an energy prior and an amortised sampler together.

Yu, Zhu, Xie, Ma, Gao, Zhu and Wu, "Learning Energy-Based Prior Model with Diffusion-Amortized
MCMC", NeurIPS 2023. Line by line in `DAMC.step`.
"""

from __future__ import annotations

__all__ = ["DAMC", "Settings"]

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from damc.amortise import EMA, Amortiser
from damc.errors import BadInput
from damc.langevin import Langevin
from damc.learn.learner import Learner, Metrics, Rate
from damc.model import LatentModel

if TYPE_CHECKING:
    from damc.networks import Networks


@dataclass(frozen=True)
class Settings:
    """Every choice of Algorithm 1, the paper's code as defaults unless the comment says otherwise.

    docs/conventions.md says where the paper and its code differ.
    """

    sigma: float = 0.1  # standard deviation of the likelihood
    posterior_steps: int = 30  # T of the posterior chain
    posterior_step_size: float = 0.1
    prior_steps: int = 60  # T of the prior chain
    prior_step_size: float = 0.4  # the paper's text says 0.1
    prior_starts: str = "conditional"  # at q(z | x); "unconditional": at q(z)
    noise_negatives: bool = True  # and as many prior chains from N(0, I)
    energy_penalty: float = 0.0  # weight of mean E^2 over both kinds of samples
    updates: int = 6  # M gradient steps of the amortiser
    p_uncond: float = 0.2
    unconditional: str = "share"  # "both": losses with and without x on the whole batch, summed
    ema_rate: float = 0.005
    ema_every: int = 10
    start_solver: str = "ancestral"  # how the chains' starts are drawn from the amortiser
    start_steps: int = 100
    decoder_rate: float = 2e-4
    energy_rate: float = 1e-4
    amortiser_rate: float = 2e-4
    amortiser_weight_decay: float = 1e-4
    beta1: float = 0.5
    decay: str = "step"
    horizon: int = 1  # of decay = "cosine"
    clip: float = 100.0
    test_steps: int = 10  # noiseless posterior moves after q(z | x) at test time
    langevin_steps: int = 100  # prior moves when images are drawn from the energy

    def __post_init__(self) -> None:
        for name in ("updates", "ema_every", "horizon", "start_steps", "langevin_steps"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("decoder_rate", "energy_rate", "amortiser_rate", "clip"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} must be positive, got {getattr(self, name)}")
        if self.decay not in ("step", "cosine"):
            raise BadInput(f"decay must be 'step' or 'cosine', got {self.decay!r}")
        if self.energy_penalty < 0 or not 0 <= self.p_uncond <= 1 or self.test_steps < 0:
            raise BadInput(
                "energy_penalty and test_steps must not be negative and p_uncond lies in [0, 1], "
                f"got {self.energy_penalty}, {self.test_steps} and {self.p_uncond}"
            )
        if self.unconditional not in ("share", "both"):
            raise BadInput(f"unconditional must be 'share' or 'both', got {self.unconditional!r}")
        if self.prior_starts not in ("conditional", "unconditional"):
            raise BadInput(
                f"prior_starts must be 'conditional' or 'unconditional', got {self.prior_starts!r}"
            )


class DAMC(Learner):
    """Diffusion-amortised MCMC learning of a latent energy-based model.

    Args:
        model: decoder, energy prior and sigma.
        amortiser: q(z | x) and q(z); its encoder embeds images.
        settings: the choices of Algorithm 1.
        networks: the description from which the networks were built, kept in `config`.
    """

    name: ClassVar[str] = "damc"
    about: ClassVar[str] = "energy prior and amortised sampler, learned together (Algorithm 1)"
    settings_type: ClassVar[Any] = Settings

    def __init__(
        self,
        model: LatentModel,
        amortiser: Amortiser,
        settings: Settings | None = None,
        networks: Networks | None = None,
    ) -> None:
        s = settings or Settings(sigma=model.sigma)
        super().__init__(s, networks)
        self.model = model
        self.amortiser = amortiser
        self.ema = EMA(amortiser, s.ema_rate)
        self.target: Amortiser = self.ema.module
        self.posterior_kernel = Langevin(s.posterior_step_size, s.posterior_steps)
        self.prior_kernel = Langevin(s.prior_step_size, s.prior_steps)
        self.clip = s.clip

        adam = {"betas": (s.beta1, 0.999), "foreach": True}
        self._learn("decoder", torch.optim.Adam, model.decoder, s.decoder_rate, **adam)
        if model.prior.energy is not None:
            self._learn("energy", torch.optim.Adam, model.prior.energy, s.energy_rate, **adam)
        decay = {"weight_decay": s.amortiser_weight_decay}
        self._learn("amortiser", torch.optim.AdamW, amortiser, s.amortiser_rate, **adam, **decay)

    @classmethod
    def build(cls, networks: Networks, settings: Any) -> DAMC:
        """A fresh learner with these networks and these settings."""
        model = networks.build_model(settings.sigma)
        return cls(model, networks.build_amortiser(), settings, networks)

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        s, model = self.settings, self.model

        # Draw DAMC samples from the EMA copy; they start the posterior and the prior chains.
        z0 = self.draw(x, generator)
        starts = z0
        if s.prior_starts == "unconditional":
            starts = self.draw(None, generator, len(x))
        if s.noise_negatives:
            starts = torch.cat([starts, torch.empty_like(z0).normal_(generator=generator)])

        # Prior and posterior Langevin updates.
        negative, _ = self.prior_kernel.run(starts, model.prior, generator)
        positive, chain = self.posterior_kernel.run(z0, model.posterior(x), generator)
        z_neg, z_pos = negative.z, positive.z

        # Update theta: the decoder by reconstruction, the energy by its difference.
        error = model.squared_error(x, z_pos).mean()
        metrics = {
            "mse": error.detach() / x[0].numel(),
            "displacement": chain.displacement,
            "z_norm": z_pos.square().mean(),
            "decoder_gradient": self.update("decoder", error),
        }
        energy = model.prior.energy
        if energy is not None:
            e_pos, e_neg = energy(z_pos), energy(z_neg)
            difference = e_pos.mean() - e_neg.mean()
            penalty = e_pos.square().mean() + e_neg.square().mean()
            loss = difference + s.energy_penalty * penalty
            metrics["energy_positive"] = e_pos.detach().mean()
            metrics["energy_difference"] = difference.detach()
            metrics["energy_gradient"] = self.update("energy", loss)

        # Update phi: M steps towards where the posterior chains ended.
        for _ in range(s.updates):
            shares = (s.p_uncond,) if s.unconditional == "share" else (0.0, 1.0)
            loss = sum(
                (self.amortiser.loss(z_pos, x, p_uncond=p, generator=generator) for p in shares),
                start=z_pos.new_zeros(()),
            )
            norm = self.update("amortiser", loss)
        metrics["amortiser_loss"] = loss.detach()
        metrics["amortiser_gradient"] = norm

        self.iteration += 1
        if self.iteration % s.ema_every == 0:
            self.ema.update()
        return metrics

    def draw(
        self, x: Tensor | None, generator: torch.Generator | None, n: int | None = None
    ) -> Tensor:
        """Starts of chains: samples of the EMA copy, ``(B, d)``."""
        s = self.settings
        return self.target.sample(
            n, x, solver=s.start_solver, steps=s.start_steps, generator=generator
        )

    @torch.no_grad()
    def sample(
        self,
        n: int,
        *,
        source: str = "amortiser",
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Images of the model, ``(n, C, H, W)``.

        Args:
            n: how many.
            source: "amortiser", q(z) decoded; "energy", Langevin on the prior from N(0, I);
                "gaussian", N(0, I) decoded, which shows what the prior adds.
            steps: Langevin moves of "energy".
            generator: source of all randomness.
        """
        return self.model.decoder(self.sample_latent(n, source, steps, generator))  # type: ignore[no-any-return]

    @torch.no_grad()
    def sample_latent(
        self,
        n: int,
        source: str = "amortiser",
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of the prior by one of the ways of `sample`, ``(n, d)``."""
        if source == "amortiser":
            return self.amortiser.sample(n, generator=generator)
        weight = self.amortiser.denoiser.fourier
        z = torch.randn(
            n, self.model.latent, generator=generator, dtype=weight.dtype, device=weight.device
        )
        if source == "gaussian":
            return z
        if source != "energy":
            raise BadInput(f"source must be amortiser, energy or gaussian, got {source!r}")
        moves = self.settings.langevin_steps if steps is None else steps
        return self.prior_kernel.run(z, self.model.prior, generator, steps=moves)[0].z

    def infer(
        self,
        x: Tensor,
        *,
        steps: int | None = None,
        noise: bool = False,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Latent points of images, ``(B, d)``: q(z | x), then `steps` posterior moves.

        Args:
            x: images, ``(B, C, H, W)`` in [-1, 1].
            steps: the settings' `test_steps` by default; 0 leaves q's sample as it is.
            noise: False climbs to the posterior's nearest mode (as the authors' evaluation
                does), True samples.
            generator: source of all randomness.
        """
        s = self.settings
        z = self.amortiser.sample(x=x, generator=generator)
        kernel = Langevin(s.posterior_step_size, noise=noise)
        moves = s.test_steps if steps is None else steps
        return kernel.run(z, self.model.posterior(x), generator, steps=moves)[0].z

    @torch.no_grad()
    def reconstruct(
        self,
        x: Tensor,
        *,
        steps: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """g(z) at inferred z, of the shape of x."""
        return self.model.decoder(self.infer(x, steps=steps, generator=generator))  # type: ignore[no-any-return]

    @torch.no_grad()
    def anomaly_score(self, x: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """-log p~(z, x) at an inferred z, ``(B,)``: higher is more anomalous."""
        return -self.model.log_joint(self.infer(x, generator=generator), x)

    def _learn(
        self, name: str, optimiser: Any, module: nn.Module, rate: float, **options: Any
    ) -> None:
        s = self.settings
        self.own(
            name,
            optimiser(list(module.parameters()), lr=rate, **options),
            Rate(rate, s.decay, s.horizon),
        )
