"""Learn to invert a frozen decoder: an encoder, an energy of codes and an amortized sampler.

Yu et al. 2023, "GAN inversion": q(z | x) is conditioned on an encoder's code of x, warmed up on
given codes, then learned by Algorithm 1 with the posterior of the frozen decoder. z are the
standardized codes of `damc.inversion.problem`; `damc.inversion.methods` inverts.
"""

from __future__ import annotations

__all__ = ["CodeEncoder", "Inversion", "Seen"]

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from damc.amortize import EMA, Amortizer
from damc.density import LogProb, value_and_grad
from damc.errors import BadInput, Diverged
from damc.inversion.problem import Problem
from damc.inversion.settings import InversionSettings
from damc.kernels.base import Info
from damc.kernels.langevin import Langevin
from damc.latent import EnergyPrior, Posterior
from damc.learn.damc import algorithm_1
from damc.learn.learner import Learner
from damc.learn.optimizers import LearningRate
from damc.learn.parts import Chain, Metrics, energy_step, sampler_step
from damc.learn.sources import Draw, Infer, energy_draw, noise_draw
from damc.learn.starts import NoiseStarts, Starts
from damc.randomness import normal_like


class Seen(NamedTuple):
    """Images, and what the amortizer is given of them: the encoder's z, and the condition."""

    x: Tensor  # (B, C, H, W)
    code: Tensor  # (B, d)
    condition: Tensor  # (B, d) or (B, 2 d)


class _Starts(Starts):
    """The encoder's code during the warm-up, then q(z | x)."""

    def __init__(self, learner: Inversion) -> None:
        self.learner = learner

    def draw(self, x: Any, index: Tensor, generator: torch.Generator | None) -> Tensor:
        """Starts of chains for what was `Seen`, ``(B, d)``."""
        warm_up = self.learner.phase == "warm-up"
        return x.code if warm_up else self.learner.start(x, generator=generator)


class _PosteriorChain(Chain):
    """Chains on p(z | x) of the frozen decoder: preconditioned Langevin, or Adam."""

    def __init__(self, learner: Inversion) -> None:
        s = learner.settings
        kernel = Langevin(s.posterior_step_size, s.posterior_steps)
        super().__init__(_Starts(learner), kernel, lambda seen: learner.posterior(seen.x))
        self.problem, self.settings = learner.problem, s

    def move(
        self, x: Any, z: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Info]:
        """Where the chains of what was `Seen` end, ``(B, d)``, and how they went."""
        s, problem = self.settings, self.problem
        if s.sampler == "langevin":
            target = problem.stretched(self.target(x))
            state, info = self.kernel.run(problem.squeeze(z), target, generator)
            return problem.stretch(state.z), info
        from damc.inversion.methods import descend

        end, misfits = descend(lambda z: problem.misfit(x.x, z), z, s.posterior_steps, s.adam_rate)
        moved = (end - z).norm(dim=1).mean()
        calls = s.posterior_steps * len(z)
        return end, Info(torch.ones_like(moved), moved, -misfits, calls)


class CodeEncoder(nn.Module):
    """An encoder whose output, scaled and shifted, is a standardized code.

    The in-domain encoder ends with a batch norm that fixes the spread of what it gives, so a gain
    and a shift, both learned, follow it. `giving_codes` makes one of an encoder of raw codes.

    Args:
        net: any module from images to ``(B, d)``.
        dim: d.
    """

    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net = net
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """z, ``(B, d)``, of images ``(B, C, H, W)``."""
        z: Tensor = self.net(x) * self.gain + self.shift
        return z

    @classmethod
    def giving_codes(cls, net: nn.Module, problem: Problem) -> CodeEncoder:
        """An encoder of raw codes, such as the published one, as one of standardized codes."""
        encoder = cls(net, problem.dim)
        with torch.no_grad():
            encoder.gain.copy_(1 / problem.scale)
            encoder.shift.copy_(-problem.mean / problem.scale)
        return encoder.eval()


class Inversion(Learner):
    """The learned parts of inversion: encoder, energy and amortizer, beside the frozen decoder.

    The first `encoder_iterations` train the encoder. All further ones are Algorithm 1, but for the
    first `warmup_iterations` of them chains start at the encoder's code instead of at q(z | x).
    The decoder's weights and its calibration are in the state too, so that a run folder needs no
    other file.

    Args:
        problem: the frozen decoder and its codes, calibrated.
        encoder: images ``(B, C, H, W)`` to z ``(B, d)``.
        energy: z ``(B, d)`` to ``(B,)``.
        amortizer: q(z | x) with ``dim = d``; its context is any module from the condition, the
            encoder's z ``(B, d)`` or, with the gradient there, ``(B, 2 d)``.
        settings: the choices.
        description: what the networks were built from, as plain values, kept in `config`.
    """

    name: ClassVar[str] = "inversion"
    about: ClassVar[str] = "codes of images under a frozen decoder: encoder, energy, amortizer"
    settings_type: ClassVar[Any] = InversionSettings
    takes_presets: ClassVar[bool] = False
    inference: ClassVar[str | None] = "encoder"

    def __init__(
        self,
        problem: Problem,
        encoder: nn.Module,
        energy: nn.Module,
        amortizer: Amortizer,
        settings: InversionSettings | None = None,
        description: dict[str, Any] | None = None,
    ) -> None:
        s = settings or InversionSettings()
        super().__init__(s)
        if amortizer.dim != problem.dim:
            raise BadInput(f"the amortizer draws {amortizer.dim} numbers, codes have {problem.dim}")
        self.description = description
        self.problem = problem
        self.encoder = encoder
        self.energy_prior = EnergyPrior(energy)
        self.amortizer = amortizer
        self.ema = EMA(amortizer, s.ema_rate)
        self.target: Amortizer = self.ema.module
        self.posterior_chain = _PosteriorChain(self)
        self.prior_chain = Chain(
            NoiseStarts(problem.dim),
            Langevin(s.prior_step_size, s.prior_steps),
            lambda x: self.energy_prior,
        )
        for name, module, rate in (
            ("encoder", encoder, s.encoder_rate),
            ("energy", energy, s.energy_rate),
            ("amortizer", amortizer, s.amortizer_rate),
        ):
            weights = [p for p in module.parameters() if p.requires_grad]
            falling = LearningRate(rate, s.decay, s.horizon)
            self.optimizers.add(name, weights, falling, betas=(0.9, 0.999))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Inversion:
        """The learner that `config` describes, with fresh weights and no calibration."""
        from damc.inversion.networks import InversionNetworks

        if config.get("networks") is None:
            raise BadInput(
                "this run was trained with networks of your own: build the same learner and "
                "call its load_state_dict with the weights"
            )
        networks = InversionNetworks(**config["networks"])
        return networks.learner(settings=InversionSettings(**config["settings"]))

    @property
    def config(self) -> dict[str, Any]:
        """Plain values from which `from_config` builds this learner again."""
        return {"networks": self.description, "settings": asdict(self.settings)}

    @property
    def phase(self) -> str:
        """What the next iteration trains: "encoder", "warm-up" or "damc"."""
        s = self.settings
        if self.iteration < s.encoder_iterations:
            return "encoder"
        return "warm-up" if self.iteration < s.encoder_iterations + s.warmup_iterations else "damc"

    def step(self, x: Tensor, index: Tensor, generator: torch.Generator | None = None) -> Metrics:
        self.problem.check_images(x)
        phase = self.phase
        self.encoder.train(phase == "encoder")
        if phase == "encoder":
            metrics = self._learn_encoder(x, generator)
        else:
            metrics = self._algorithm_1(x, index, generator)
        self.iteration += 1
        if phase != "encoder" and self.iteration % self.settings.ema_every == 0:
            self.ema.update()
        return metrics

    def start(
        self, seen: Seen, n: int | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of q(z | x), ``(B, d)``, or ``(n, B, d)`` if n is given."""
        s = self.settings
        z = self.target.sample(
            n, seen.condition, solver=s.start_solver, steps=s.start_steps, generator=generator
        )
        return z * s.spread + seen.code if s.relative else z

    def look(self, x: Tensor) -> Seen:
        """What the amortizer is given of images: one pass of the encoder, one gradient.

        The gradient of log p(x | z) at the encoder's code is divided by the mean precision M of
        posteriors, so that it is the step which would end at the mode if the decoder were linear.
        """
        e = self.encode(x)
        if self.settings.condition == "code":
            return Seen(x, e, e)
        _, gradient = value_and_grad(lambda z: self.problem.log_likelihood(x, z), e)
        move = self.problem.stretch(self.problem.stretch(gradient))
        return Seen(x, e, torch.cat([e, move], dim=1))

    def encode(self, x: Tensor) -> Tensor:
        """The encoder's z of images, ``(B, d)``."""
        self.encoder.eval()
        with torch.no_grad():
            e: Tensor = self.encoder(self.problem.check_images(x))
        if not bool(torch.isfinite(e).all()):
            raise Diverged("the encoder's codes are not finite")
        return e

    def posterior(self, x: Tensor) -> LogProb:
        """log p~(z | x), with the energy."""
        return Posterior(self.energy_prior, self.problem.log_likelihood, x)

    def chain(
        self,
        x: Tensor,
        z: Tensor,
        steps: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Langevin moves on the posterior, preconditioned by the decoder's mean stiffness."""
        kernel = Langevin(self.settings.posterior_step_size)
        target = self.problem.stretched(self.posterior(x))
        state, _ = kernel.run(self.problem.squeeze(z), target, generator, steps=steps)
        return self.problem.stretch(state.z)

    @property
    def prior(self) -> EnergyPrior:
        """The energy prior of standardized codes."""
        return self.energy_prior

    def draws(self) -> Mapping[str, Draw]:
        """Langevin on the energy of codes, from N(0, I)."""
        gaussian = noise_draw(self.energy_prior, self.problem.dim)
        return {"energy": energy_draw(self.energy_prior, self.prior_chain.kernel, gaussian)}

    def decode(self, z: Tensor) -> Tensor:
        """Images of standardized codes z ``(B, d)``."""
        return self.problem.decode(z)

    def inferences(self) -> Mapping[str, Infer]:
        """Standardized codes as the method "damc" finds them."""
        from damc.inversion.methods import invert

        def damc(
            x: Tensor, _: int | None, noise: bool, generator: torch.Generator | None
        ) -> Tensor:
            codes = invert(self, x, "damc", generator=generator).codes
            return self.problem.standardize(codes.to(self.problem.mean))

        return {"damc": damc}

    def _learn_encoder(self, x: Tensor, generator: torch.Generator | None) -> Metrics:
        s, problem = self.settings, self.problem
        z = problem.draw(len(x), generator)
        with torch.no_grad():
            drawn = problem.decode(z)
        both = torch.cat([drawn, x])
        e = self.encoder(both)
        code_error = (e[: len(z)] - z).square().mean()
        misfit = problem.misfit(both, e)
        loss = s.code_weight * code_error + s.image_weight * misfit.mean()
        return {
            "code_error": code_error.detach(),
            "drawn_misfit": misfit[: len(z)].detach().mean(),
            "misfit": misfit[len(z) :].detach().mean(),
            "encoder_gradient": self.update("encoder", loss),
        }

    def _algorithm_1(self, x: Tensor, index: Tensor, generator: torch.Generator | None) -> Metrics:
        s = self.settings

        def prior_starts(seen: Seen, z0: Tensor, generator: torch.Generator | None) -> Tensor:
            if not s.noise_negatives:
                return z0
            return torch.cat([z0, normal_like(z0, generator)])

        def update_amortizer(seen: Seen, z: Tensor, generator: torch.Generator | None) -> Metrics:
            goal = (z - seen.code) / s.spread if s.relative else z
            choices = {"updates": s.updates, "p_uncond": s.p_uncond}
            condition, update = seen.condition, self.update
            return sampler_step(
                self.amortizer, condition, goal, generator, update=update, **choices
            )

        return algorithm_1(
            self.look(x),
            index,
            generator,
            posterior=self.posterior_chain,
            prior=self.prior_chain,
            prior_starts=prior_starts,
            update_decoder=None,
            update_energy=partial(
                energy_step, self.energy_prior.energy, update=self.update, penalty=s.energy_penalty
            ),
            update_amortizer=update_amortizer,
        )
